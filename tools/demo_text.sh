#!/usr/bin/env bash
# Makes the text of the demo: Jane Austen's six novels (4 MB, public domain) from Debian's package
# r-cran-janeaustenr, which is downloaded and not installed. Where that is impossible, text of this machine.
#   tools/demo_text.sh FOLDER   created when complete, one file per novel; an existing folder is kept
set -euo pipefail
[ $# = 1 ] || { sed -n '2,/^set/{/^#/p}' "$0"; exit 2; }
folder=$(readlink -m "$1") package=r-cran-janeaustenr
here=$(cd "$(dirname "$0")" && pwd)
[ ! -d "$folder" ] || { echo "$folder exists"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# novels RDB: R's file of compressed objects. Each is a 4-byte length and a zlib stream with a serialized vector of
# strings, the lines of a novel: a header, then for each string 4 bytes of flags, 4 of length, and the text. (R
# Internals, "Serialization Formats") The lines of a paragraph become one line.
novels() {
    perl -MCompress::Zlib -e '
        my ($folder, $rdb) = @ARGV;
        open my $in, "<:raw", $rdb or die "$rdb: $!\n";
        my $data = do { local $/; <$in> };
        for (my ($n, $at) = (1, 0); $at < length $data; $n++) {
            my $rest = substr $data, $at + 4;
            my ($text, $status) = (inflateInit())[0]->inflate($rest);
            die "$rdb: object $n is damaged\n" unless $status == Z_STREAM_END;
            $at = length($data) - length $rest;
            my $p = 18 + unpack("N", substr $text, 14, 4);    # format, versions, encoding
            my ($type, $lines) = unpack "NN", substr $text, $p, 8;
            die "$rdb: object $n is not a vector of strings\n" unless ($type & 255) == 16;
            $p += 8;
            open my $out, ">:raw", "$folder/$n.txt" or die "$folder/$n.txt: $!\n";
            my $paragraph = "";
            while ($lines--) {
                my $size = unpack "N", substr $text, $p + 4, 4;
                my $line = substr $text, $p + 8, $size;
                $p += 8 + $size;
                if ($line =~ /\S/) { $paragraph .= ($paragraph eq "" ? "" : " ") . $line }
                elsif ($paragraph ne "") { print $out "$paragraph\n\n"; $paragraph = "" }
            }
            print $out "$paragraph\n" if $paragraph ne "";
            close $out or die "$folder/$n.txt: $!\n";
        }' "$@"
}

if (cd "$work" && apt-get -qq download "$package" && dpkg-deb -x "$package"_*.deb .) 2>"$work/log" &&
    mkdir "$work/text" && novels "$work/text" "$(find "$work" -path '*/data/Rdata.rdb')" 2>>"$work/log"; then
    mkdir -p "$(dirname "$folder")"
    cp -r "$work/text" "$folder.new" && mv "$folder.new" "$folder"
    echo "Jane Austen: $(find "$folder" -type f | wc -l) novels, $(cat "$folder"/* | wc -c) bytes"
else
    echo "the novels of the package $package are not available ($(tail -n 1 "$work/log")); the text of this machine is used" >&2
    "$here/collect_text.sh" "$folder"
fi

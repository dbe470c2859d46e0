/* embed: turns the kernel files named on the command line into a C file with one table,
 *     const struct { const char *name; const unsigned char *text; unsigned long bytes; } clt_embedded[];
 * Names are relative to clkernels/. Texts end with a 0 that is not counted. */
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) {
            perror(argv[i]);
            return 1;
        }
        printf("static const unsigned char text_%d[] = {", i);
        long n = 0;
        for (int c; (c = fgetc(f)) != EOF; n++) printf("%s%d,", n % 24 ? "" : "\n", c);
        printf("0};\nenum { bytes_%d = %ld };\n", i, n);
        fclose(f);
    }
    printf("typedef struct { const char *name; const unsigned char *text; unsigned long bytes; } "
           "clt_embedded_file;\n"
           "extern const clt_embedded_file clt_embedded[];\nextern const int clt_embedded_count;\n"
           "const clt_embedded_file clt_embedded[] = {\n");
    for (int i = 1; i < argc; i++) {
        const char *name = strncmp(argv[i], "clkernels/", 10) == 0 ? argv[i] + 10 : argv[i];
        printf("    {\"%s\", text_%d, bytes_%d},\n", name, i, i);
    }
    printf("    {0, 0, 0}};\nconst int clt_embedded_count = %d;\n", argc - 1);
    return 0;
}

#!/bin/bash
# Mutations of responses of an object store and of the AWS tools' files (see fuzz_s3_xml.c, fuzz_s3_ini.c).
[ -x "$BUILD/test/fuzz/fuzz_s3_xml" ] || { echo "skip: built without object stores (CURL=0)"; exit 0; }
"$BUILD"/test/fuzz/fuzz_s3_xml -n "${FUZZ_MUTATIONS:-1500}" test/fuzz/seeds/fuzz_s3_xml/* &&
    "$BUILD"/test/fuzz/fuzz_s3_ini -n "${FUZZ_MUTATIONS:-1500}" test/fuzz/seeds/fuzz_s3_ini/*

#!/bin/bash
# The rules of the house hold: layers, places of CL/cl.h, mpi.h and getenv, lengths, READMEs.
# no sanitizer: it runs no program of the project
exec tools/lint.sh --rules

#!/bin/bash
# The rules of the house hold: layers, places of CL/cl.h, mpi.h and getenv, lengths, READMEs.
exec tools/lint.sh --rules

/* The parts of `cltrain data` that live in files of their own. argv[0] is the word after `data`; the result
 * is the program's exit code. */
#ifndef CLTRAIN_DATA_COMMANDS_H
#define CLTRAIN_DATA_COMMANDS_H

int data_convert(int argc, char **argv);
int data_order(int argc, char **argv);
int data_tokenize(int argc, char **argv);
int data_train_tokenizer(int argc, char **argv);

#endif

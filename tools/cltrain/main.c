#include <stdio.h>
int main(void) { puts("cltrain"); return 0; }

#include <stdio.h>
int main(void) {
    puts("clbench");
    return 0;
}

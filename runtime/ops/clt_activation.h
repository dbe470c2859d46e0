/* clt_activation: the activation functions, for matrix products that end with an activation and for separate
 * operations. docs/numerics.md defines each to the last bit; the formulas here are the mathematical ones. The
 * enumerators' values are used in build options of kernels (-DACT=3; clkernels/include/clt_act.clh). */
#ifndef CLT_ACTIVATION_H
#define CLT_ACTIVATION_H

typedef enum {
    CLT_ACT_NONE,       /* x */
    CLT_ACT_GELU,       /* 0.5 x (1 + erf(x/sqrt 2)) */
    CLT_ACT_GELU_TANH,  /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    CLT_ACT_QUICK_GELU, /* x sigmoid(1.702 x) */
    CLT_ACT_RELU,       /* max(x, 0) */
    CLT_ACT_SILU,       /* x sigmoid(x) */
    CLT_ACT_TANH,
    CLT_ACT_SIGMOID,
    CLT_ACT_RELU2,      /* relu(x)^2 */
    CLT_ACT_ELU,        /* x for x > 0, else e^x - 1 */
    CLT_ACT_LEAKY_RELU, /* x for x > 0, else 0.01 x */
    CLT_ACT_SOFTPLUS,   /* log(1 + e^x); x itself for x > 20 */
    CLT_ACT_MISH,       /* x tanh(softplus(x)) */
    CLT_ACT_COUNT
} clt_activation;

#endif

// Attention by warpgroups, as one module for Hopper.
#include "attention_group_backward.cu"
#include "attention_group_forward.cu"

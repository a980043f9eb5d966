// All kernels for weights in blocks (bulk_arguments.h), as one module for Hopper.
#include "product_blocks.cu"
#include "product_bulk.cu"
#include "product_cluster.cu"

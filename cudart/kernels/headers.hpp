// The functions, structures and numbers of driver.h, cublaslt.h and nccl.h beside those of NVIDIA's own headers: it compiles where they agree. `make.sh headers` does that.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

extern "C" {
#include "../driver.h"
}

// same tells whether arguments of the two types are passed alike: pointers are pointers, handles too; numbers have one size.
template <class A, class B> constexpr bool same() {
  if constexpr (std::is_void<A>::value || std::is_void<B>::value) return std::is_void<A>::value && std::is_void<B>::value;
  else if constexpr (std::is_pointer<A>::value || std::is_pointer<B>::value) return std::is_pointer<A>::value && std::is_pointer<B>::value;
  else return sizeof(A) == sizeof(B) && std::is_floating_point<A>::value == std::is_floating_point<B>::value;
}
template <class A, class B> struct alike : std::false_type {};
template <class R, class S> struct alike<R(), S()> : std::bool_constant<same<R, S>()> {};
template <class R, class A, class... As, class S, class B, class... Bs> struct alike<R(A, As...), S(B, Bs...)> : std::bool_constant<same<A, B>() && alike<R(As...), S(Bs...)>::value> {};

#define CUDA_FUNCTION(name, arguments) static_assert(alike<decltype(::name), cuda_result arguments>::value, #name);
#define FUNCTION(result, name, arguments) static_assert(alike<decltype(::name), result arguments>::value, #name);
#define NUMBER(theirs, ours) static_assert((long)(theirs) == (long)(ours), #theirs);
#define MEMBER(their, theirs, our, ours) static_assert(offsetof(their, theirs) == offsetof(our, ours) && sizeof(their::theirs) == sizeof(our::ours), #theirs);

CUDA_FUNCTIONS(CUDA_FUNCTION)
CUDA_GRAPH_FUNCTIONS(CUDA_FUNCTION)
CUDA_EDGE_FUNCTIONS(CUDA_FUNCTION)

NUMBER(sizeof(CUDA_MEMCPY2D), sizeof(cuda_copy))
MEMBER(CUDA_MEMCPY2D, srcMemoryType, cuda_copy, source_type)
MEMBER(CUDA_MEMCPY2D, srcHost, cuda_copy, source_host)
MEMBER(CUDA_MEMCPY2D, srcDevice, cuda_copy, source_device)
MEMBER(CUDA_MEMCPY2D, srcPitch, cuda_copy, source_pitch)
MEMBER(CUDA_MEMCPY2D, dstMemoryType, cuda_copy, to_type)
MEMBER(CUDA_MEMCPY2D, dstHost, cuda_copy, to_host)
MEMBER(CUDA_MEMCPY2D, dstDevice, cuda_copy, to_device)
MEMBER(CUDA_MEMCPY2D, dstPitch, cuda_copy, to_pitch)
MEMBER(CUDA_MEMCPY2D, WidthInBytes, cuda_copy, width)
MEMBER(CUDA_MEMCPY2D, Height, cuda_copy, height)
NUMBER(sizeof(CUDA_KERNEL_NODE_PARAMS_v2), sizeof(cuda_node))
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, func, cuda_node, function)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, gridDimX, cuda_node, x)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, gridDimZ, cuda_node, z)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, blockDimX, cuda_node, threads_x)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, blockDimZ, cuda_node, threads_z)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes, cuda_node, shared)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, kernelParams, cuda_node, arguments)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, extra, cuda_node, extra)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, kern, cuda_node, kernel)
MEMBER(CUDA_KERNEL_NODE_PARAMS_v2, ctx, cuda_node, context)

NUMBER(sizeof(CUgraphEdgeData), sizeof(cuda_edge))
MEMBER(CUgraphEdgeData, from_port, cuda_edge, from_port)
MEMBER(CUgraphEdgeData, to_port, cuda_edge, to_port)
MEMBER(CUgraphEdgeData, type, cuda_edge, type)
NUMBER(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, 1)
NUMBER(CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, 1)

NUMBER(sizeof(CUuuid), 16)

// Numbers that driver.c and device.go write.
NUMBER(CU_MEMORYTYPE_HOST, 1)
NUMBER(CU_MEMORYTYPE_DEVICE, 2)
NUMBER(CU_STREAM_NON_BLOCKING, 1)
NUMBER(CU_EVENT_DEFAULT, 0)
NUMBER(CU_EVENT_DISABLE_TIMING, 2)
NUMBER(CU_MEMHOSTALLOC_PORTABLE, 1)
NUMBER(CU_JIT_ERROR_LOG_BUFFER, 5)
NUMBER(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 6)
NUMBER(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)
NUMBER(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 13)
NUMBER(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)
NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)
NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)
NUMBER(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)
NUMBER(CUDA_ERROR_OUT_OF_MEMORY, 2)
NUMBER(CUDA_ERROR_NO_DEVICE, 100)
NUMBER(CUDA_ERROR_NOT_FOUND, 500)
NUMBER(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)
// After which a device is lost (cudart.go).
NUMBER(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)
NUMBER(CUDA_ERROR_ECC_UNCORRECTABLE, 214)
NUMBER(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)
NUMBER(CUDA_ERROR_CONTAINED, 226)
NUMBER(CUDA_ERROR_ILLEGAL_ADDRESS, 700)
NUMBER(CUDA_ERROR_LAUNCH_TIMEOUT, 702)
NUMBER(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)
NUMBER(CUDA_ERROR_ASSERT, 710)
NUMBER(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)
NUMBER(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)
NUMBER(CUDA_ERROR_MISALIGNED_ADDRESS, 716)
NUMBER(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)
NUMBER(CUDA_ERROR_INVALID_PC, 718)
NUMBER(CUDA_ERROR_LAUNCH_FAILED, 719)
NUMBER(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721)
NUMBER(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)
NUMBER(CUDA_ERROR_EXTERNAL_DEVICE, 911)
NUMBER(CUDA_ERROR_UNKNOWN, 999)

#ifdef WITH_CUBLASLT
#include <cublasLt.h>
extern "C" {
#include "../cublaslt.h"
}
CUBLASLT_FUNCTIONS(FUNCTION)
NUMBER(sizeof(cublasLtMatmulHeuristicResult_t), sizeof(cublaslt_choice))
MEMBER(cublasLtMatmulHeuristicResult_t, algo, cublaslt_choice, algorithm)
MEMBER(cublasLtMatmulHeuristicResult_t, workspaceSize, cublaslt_choice, workspace)
MEMBER(cublasLtMatmulHeuristicResult_t, state, cublaslt_choice, state)
NUMBER(CUBLAS_COMPUTE_32F, 68)
NUMBER(CUDA_R_32F, 0)
NUMBER(CUDA_R_16BF, 14)
NUMBER(CUBLAS_OP_N, 0)
NUMBER(CUBLAS_OP_T, 1)
NUMBER(CUBLASLT_MATMUL_DESC_TRANSA, 3)
NUMBER(CUBLASLT_MATMUL_DESC_TRANSB, 4)
NUMBER(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)
NUMBER(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)
NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)
NUMBER(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)
NUMBER(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 2)
NUMBER(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 3)
NUMBER(CUBLASLT_MATRIX_LAYOUT_COLS, 3)
NUMBER(CUBLASLT_MATRIX_LAYOUT_LD, 4)
NUMBER(CUBLAS_STATUS_NOT_INITIALIZED, 1)
NUMBER(CUBLAS_STATUS_NOT_SUPPORTED, 15)
#endif

#ifdef WITH_NCCL
#include <nccl.h>
namespace ours { // both headers of this name
extern "C" {
#include "../nccl.h"
}
} // namespace ours
namespace ours {
NCCL_FUNCTIONS(FUNCTION)
}
NUMBER(ncclFloat32, 7)
NUMBER(ncclUnhandledCudaError, 1)
#endif

//go:build emulate_avx512

package cpu

// With this tag the kernels for avx512, for AMX and for few rows on the other maker's processors run on any processor with avx2, slowly, so that tests there say what they compute. At -O3 compiling them takes more than ten minutes.

// #cgo CFLAGS: -DEMULATE_AVX512 -O1 -Wno-psabi
import "C"

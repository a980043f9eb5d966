// Package kernels holds the text of the CUDA kernels, for the tests that compile it for a processor. make.sh compiles it for GPUs.
package kernels

import "embed"

// Sources are all files of the kernels, in one folder: kernels.cu includes all but warpgroup.cu, bulk.cu, attention_group.cu and outer_group.cu, which are modules of their own.
//
//go:embed *.cu *.h
var Sources embed.FS

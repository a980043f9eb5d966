package model

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
)

// adapterConfigFile is PEFT's: transformers loads an adapter that lies among a model's files together with it.
const adapterConfigFile = "adapter_config.json"

// refuseAdapter refuses a model directory that an adapter lies in.
func refuseAdapter(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, adapterConfigFile)); err == nil {
		return fmt.Errorf("%s in %s is of an adapter, with which transformers would load the model: serve the base model's own directory, without it, and take the adapter over with `tinsmith import`", adapterConfigFile, dir)
	}
	return nil
}

// sameHead tells whether the files of a tied model have one matrix for embedding and head: one of them only, or both with the same values. transformers 5 ties only then.
func sameHead(files weightFiles) bool {
	embedding, ok := files.Tensor(embeddingName)
	head, both := files.Tensor(headName + ".weight")
	if !ok || !both {
		return true
	}
	if !slices.Equal(embedding.Shape, head.Shape) || len(embedding.Shape) != 2 {
		return false
	}
	if embedding.DType == head.DType {
		return bytes.Equal(embedding.Data, head.Data)
	}
	for row := range embedding.Shape[0] { // by rows, for the matrices may be large
		a, err := rowOf(embedding, row).Float32s()
		if err != nil {
			return false
		}
		b, err := rowOf(head, row).Float32s()
		if err != nil || !slices.Equal(a, b) {
			return false
		}
	}
	return true
}

// rowOf is one row of a matrix.
func rowOf(t safetensors.Tensor, row int) safetensors.Tensor {
	n := len(t.Data) / t.Shape[0]
	t.Data = t.Data[row*n : (row+1)*n]
	return t
}

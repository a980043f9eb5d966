package merge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// twoHeads tells whether a model has a matrix for its embedding and another one for its head. transformers 5 and the server then use both, also where the configuration ties them; other programs use one.
func twoHeads(ctx context.Context, s Source, tensors map[string]tensor) (bool, error) {
	embedding, ok := tensors[inFile(isNested(tensors), embeddingTensor)]
	head, both := tensors[headTensor]
	if !ok || !both {
		return false, nil
	}
	if embedding.dtype != head.dtype || !slices.Equal(embedding.shape, head.shape) {
		return true, nil // of two types: that they have the same values all the same makes no difference
	}
	a, err := s.Open(ctx, embedding.file, embedding.offset, embedding.size)
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := s.Open(ctx, head.file, head.offset, head.size)
	if err != nil {
		return false, err
	}
	defer b.Close()
	const part = 1 << 20
	one, other := make([]byte, part), make([]byte, part)
	for left := embedding.size; left > 0; left -= part {
		n := min(left, part)
		if err := ctx.Err(); err != nil {
			return false, err
		}
		_, errA := io.ReadFull(a, one[:n])
		_, errB := io.ReadFull(b, other[:n])
		if err := errors.Join(errA, errB); err != nil {
			return false, fmt.Errorf("compare %s and %s: %w", embeddingTensor, headTensor, err)
		}
		if !bytes.Equal(one[:n], other[:n]) {
			return true, nil
		}
	}
	return false, nil
}

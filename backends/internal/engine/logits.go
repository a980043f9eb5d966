package engine

// A GPU's products fill it only with many rows, and the head's weights are read once for each chunk of logits: so chunks are larger where there is more memory. What a GPU has for this backend beside the weights is shared out in
// so many parts, one of which is for the sampler's logits at once, and four (model.LoadOptions) for those of a training pass. Chunks are of whole tiles of 128 rows
// (model.LoadOptions.LogitsBytes): of a vocabulary of 151,936 training has 3,456 rows at once beside a model of 16 GB on an H200, 2,304 on an H100, and 640 beside one of 1.2 GB on a GPU of 24 GB.
const (
	logitsParts = 160
	leastLogits = 64 << 20
	mostLogits  = 512 << 20
)

// LogitsBytes is model.LoadOptions.LogitsBytes for devices with memory of their own, the fullest of which has so much for the backend, and so much of it for weights.
func LogitsBytes(memory, weights int64) int {
	return int(min(max((memory-weights)/logitsParts, leastLogits), mostLogits))
}

// logits is LogitsBytes of the home that has least beside its weights; 0, the model's own, where homes have no memory of their own. It is the same at each start: how models are cut into launches is no matter of what else runs.
func (m memoryLimits) logits(weights []int64) int {
	least := 0
	for i, memory := range m.stated {
		if n := LogitsBytes(memory, weights[i]); i == 0 || n < least {
			least = n
		}
	}
	return least
}

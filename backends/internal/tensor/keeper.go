package tensor

// Keeper is implemented by devices on which what is kept for a backward pass is what memory runs out for. What a forward pass computes from is not rounded by it, so its results are those of a device that is none.
type Keeper interface {
	// KeptType is the type that a layer's outputs are kept in where its weights are of a type: BFloat16, rounded to nearest even, or Float32.
	KeptType(weights DType) DType
}

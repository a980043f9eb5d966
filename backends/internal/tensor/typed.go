package tensor

// Typed is implemented by devices on which operations with weights of some type have the bits of another arithmetic than Device.Arithmetic names.
type Typed interface {
	// ArithmeticOf identifies the bits of operations whose weights are of a type, or of float32: equal strings mean equal results.
	ArithmeticOf(weights DType) string
}

// ArithmeticOf is what a device tells of a type of weights.
func ArithmeticOf(d Device, weights DType) string {
	if t, ok := d.(Typed); ok {
		return t.ArithmeticOf(weights)
	}
	return d.Arithmetic()
}

package lora

// Uniform fills the A of a fresh adapter uniformly in ±bound, by seed and by its name in a PEFT file, as Initialize does.
func Uniform(values []float32, seed uint64, name string, bound float64) {
	uniform(values, seed, name, bound)
}

package tensor

// Finisher is implemented by devices whose products can end in what layers do with their sums next, so that these are not written and read again. Each operation gives the bits of those of Device that it stands for, whichever way it
// is done.
type Finisher interface {
	// Finishes says whether the device gains from that, which does not change as long as it is open. A device that does not is asked for nothing else of this.
	Finishes() bool
	// MatMulsAdd: MatMuls(stages...), then Add(y, add), where y is what the first product of the first stage writes: all of its rows, with one matrix. add is not y.
	MatMulsAdd(add Tensor, stages ...[]Multiplication) error
	// MatMulsGated: MatMuls(stages...), whose first stage begins with the products that write gate and up, all of their rows with one matrix each; then SwiGLUKeep(hidden, keptGate, keptUp, gate, up) or, where what is kept has no
	// buffers, SwiGLU(hidden, gate, up). hidden is bfloat16. What gate and up hold afterwards is undefined.
	MatMulsGated(hidden, keptGate, keptUp Tensor, stages ...[]Multiplication) error
}

package tensor

// Recurrence is the operations of layers that remember a sequence in a state of fixed size, not in keys and values: a causal convolution and the gated delta rule, and what stands beside them. As everywhere a row's result is
// that of its sequence alone, and where a sequence is cut changes no bit: the states hold all that goes from one part to the next.
type Recurrence interface {
	// HasRecurrence tells whether the device has these operations. One that has not answers them with an error.
	HasRecurrence() bool

	// Conv: y[t] = silu(Σi weight[i]·x[t-W+1+i]) for every channel (column), one chain over i ascending. weight is W × channels. The W-1 rows of x before a run's first are in its slot of tails, which is slots × (W-1)·channels and
	// holds the last W-1 rows of x afterwards; without a slot they are zeros. Rows of no run stay as they are.
	Conv(y, x, weight, tails Tensor, runs []StateRun) error
	// ConvBackward overwrites dx for dy at input x, of whole sequences: no run has a slot. dx may be dy.
	ConvBackward(dx, dy, x, weight Tensor, runs []StateRun) error

	// DeltaRule goes through each run token by token, for every value head, which uses key head h / (ValueHeads/KeyHeads), with a state S of KeyDim × ValueDim:
	//
	//	q = q'·(Σq'²+1e-6)^-½·KeyDim^-½, k = k'·(Σk'²+1e-6)^-½, β = sigmoid(b), e = exp(-exp(ALog)·softplus(a + Bias))
	//	m = Sᵀk, p = Sᵀq, δ = β·(v - e·m), o = e·p + (k·q)·δ, S = e·S + k·δᵀ
	//
	// m and p are four chains each, over the rows i of S with i ≡ c (mod 4), added (c0+c2) + (c1+c3); softplus(y) is y above 20. o is M × ValueHeads·ValueDim. S is zero without a slot; else it is in the run's slot of states, slots ×
	// in.StateSize(), before and after. How a state lies in its slot is the device's own affair; zeros are the zero state. Rows of no run stay as they are.
	DeltaRule(o Tensor, in DeltaInputs, states Tensor, runs []StateRun) error
	// DeltaRuleBackward overwrites the gradients for do, of whole sequences: no run has a slot. dmixed may not be in.Mixed.
	DeltaRuleBackward(dmixed, da, db, do Tensor, in DeltaInputs, runs []StateRun) error

	// GatedNorm: y = RMSNorm(x, weight, eps) · silu(z), per row. y may be x or z.
	GatedNorm(y, x, z, weight Tensor, eps float32) error
	// GatedNormBackward overwrites dx and dz. dx may be dy, and dz may be z.
	GatedNormBackward(dx, dz, dy, x, z, weight Tensor, eps float32) error
	// SigmoidGate: y = x · sigmoid(gate). y may be x.
	SigmoidGate(y, x, gate Tensor) error
	// SigmoidGateBackward overwrites dx and dgate. dx may be dy, and dgate may be gate.
	SigmoidGateBackward(dx, dgate, dy, x, gate Tensor) error
}

// NoSlot is the slot of a run that begins with the zero state and leaves none.
const NoSlot = -1

// StateRun is one sequence's part of a batch: rows [Row, Row+Count) go on from the state in a slot, and leave theirs there. No row and no slot may be in two runs.
type StateRun struct{ Row, Count, Slot int }

// DeltaInputs is what the delta rule reads. Mixed is M × (2·KeyHeads·KeyDim + ValueHeads·ValueDim): all queries q', all keys k', all values; A and B are M × ValueHeads, ALog and Bias 1 × ValueHeads.
type DeltaInputs struct {
	Mixed, A, B, ALog, Bias                Tensor
	KeyHeads, ValueHeads, KeyDim, ValueDim int
}

// MaxDeltaDim bounds KeyDim and ValueDim.
const MaxDeltaDim = 256

// StateSize is the number of elements of the states of all heads.
func (in *DeltaInputs) StateSize() int { return in.ValueHeads * in.KeyDim * in.ValueDim }

// MixedSize is the number of columns of Mixed.
func (in *DeltaInputs) MixedSize() int { return 2*in.KeyHeads*in.KeyDim + in.ValueHeads*in.ValueDim }

// MaxConvWidth bounds the width of a convolution.
const MaxConvWidth = 8

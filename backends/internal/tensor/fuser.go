package tensor

// Fuser is implemented by devices to which every pass over memory is dear: operations that follow one another are one there. Each gives the bits of those of Device that it stands for. Rows that nothing but products
// with bfloat16 matrices will read, such a device takes as bfloat16: RMSNorm, SwiGLU and SwiGLUClamped write a y of that type, rounded as a product rounds its rows. What was kept rounded it reads as it is: SwiGLU,
// SwiGLUClamped and their backwards take a gate and an up of bfloat16, AttentionBackward an o.
type Fuser interface {
	// AddRMSNorm: Add(sum, x), then RMSNorm(y, sum, weight, eps). y is not sum, and may be bfloat16.
	AddRMSNorm(y, sum, x, weight Tensor, eps float32) error
	// SwiGLUKeep: SwiGLU(y, gate, up), Round(keptGate, gate) and Round(keptUp, up). gate and up are float32, what is kept is bfloat16.
	SwiGLUKeep(y, keptGate, keptUp, gate, up Tensor) error
	// SwiGLUClampedKeep: SwiGLUClamped(y, gate, up, c), and Round as in SwiGLUKeep.
	SwiGLUClampedKeep(y, keptGate, keptUp, gate, up Tensor, c Clamp) error
	// QueryType is the type that attention over the pages rounds queries to: with BFloat16, Attention and AttentionBackward take a q of that type too, with equal bits.
	QueryType(p Pages) DType
	// AttentionKeep: Attention(o, …), then Round of the runs' rows of o to kept, which is bfloat16. What these rows of o hold afterwards is undefined.
	AttentionKeep(kept, o, lse, q Tensor, p Pages, layer int, runs []AttentionRun, queryHeads int, scale float32) error
	// SinkKeep: Sink(o, lse, sinks), then Round(kept, o); kept is bfloat16. What o holds afterwards is undefined.
	SinkKeep(kept, o, lse, sinks Tensor) error
	// TurnHeads: RMSNorm of every head of h.Queries and h.Keys that has a norm, Rope of both, Round of the queries to q, and WritePages of the keys and of h.Values. q is float32 or bfloat16; a float32 q may be h.Queries.
	// Round of h.Queries and h.Keys to what is kept of them comes first. What h has is otherwise unchanged. Queries of rows of no run are turned too.
	TurnHeads(q Tensor, h Heads, p Pages, layer int, runs []AttentionRun) error
	// TurnHeadsBackward: inverse Rope of dq and dk, and RMSNormBackward of them in place for what has a norm. h.Queries and h.Keys may be bfloat16, and are not looked at where there is no norm; nor is h.Values.
	TurnHeadsBackward(dq, dk Tensor, h Heads) error
}

// Heads are queries (M × QueryHeads·headDim), keys and values (M × KeyHeads·headDim) as products gave them, and how they are turned: positions and table are as in Device.Rope.
type Heads struct {
	Queries, Keys, Values Tensor
	// KeptQueries and KeptKeys are where a Fuser's TurnHeads keeps queries and keys as bfloat16 (M × the same columns); without a buffer it does not.
	KeptQueries, KeptKeys Tensor
	QueryHeads, KeyHeads  int
	QueryNorm, KeyNorm    HeadNorm
	Positions             []int32
	Table                 Tensor
}

// HeadNorm is an RMSNorm of every head; without a buffer under the weight (1 × headDim) there is none.
type HeadNorm struct {
	Weight Tensor
	Eps    float32
}

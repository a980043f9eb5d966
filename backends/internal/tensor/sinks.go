package tensor

// MaxWindow is the most positions that a window of attention may have: within it the running softmax never restarts, so sums of so many terms are rounded one after another.
const MaxWindow = 32768

// SinkDevice is the part of Device that gpt-oss has beside other families with experts: attention to a window (AttentionRun.Window) and with sinks, and experts whose layers have biases and whose gated product is clamped.
type SinkDevice interface {
	// Sink makes what Attention gave that of a softmax over one score more, a head's sink (sinks is 1 × heads), whose value is zero: o (M × heads·headDim) is multiplied by exp(lse - z), and lse (M × heads) becomes
	// z = log(exp(lse) + exp(sink)). With these AttentionBackward gives the gradients as it is.
	Sink(o, lse, sinks Tensor) error
	// SwiGLUClamped: y = (u + 1) · g · sigmoid(Alpha·g) with g = min(gate, Limit) and u = up within ±Limit. NaN stays. Its backward overwrites dgate and dup, which are zero where the limit cuts off; dgate may be gate, dup may be up or dy. Types are as in SwiGLU.
	SwiGLUClamped(y, gate, up Tensor, c Clamp) error
	SwiGLUClampedBackward(dgate, dup, dy, gate, up Tensor, c Clamp) error
	// AddRouted: every row of the table += the row of bias (experts × Cols) of its expert.
	AddRouted(rows, bias Tensor, table Table) error
	// AddRoutedBackward adds to dp (T × k) what the biases of the chosen experts count in what is combined: dp[t,s] += ⟨dy[t], bias[choice[t,s]]⟩, by 16 lanes and one tree. choice is one that Dispatch has taken.
	AddRoutedBackward(dp, dy, bias, choice Tensor) error
}

// Clamp are the settings of a gated product that is clamped.
type Clamp struct{ Alpha, Limit float32 }

package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// RMSNorm is y = x / √(mean(x²) + eps) · weight over each row.
type RMSNorm struct {
	Weight tensor.Tensor // 1 × the row's length
	Eps    float32
}

// Forward writes y; it may be x.
func (n *RMSNorm) Forward(p *Pass, y, x tensor.Tensor) error {
	return p.Device.RMSNorm(y, x, n.Weight, n.Eps)
}

// Backward writes to dx (which may be dy), or adds to it, the gradient by the input x for the gradient dy by the output. The weight is frozen.
func (n *RMSNorm) Backward(p *Pass, dx, dy, x tensor.Tensor, accumulate bool) error {
	return p.Device.RMSNormBackward(dx, dy, x, n.Weight, n.Eps, accumulate)
}

// ofHeads is the norm of every head; n may be nil.
func (n *RMSNorm) ofHeads() tensor.HeadNorm {
	if n == nil {
		return tensor.HeadNorm{}
	}
	return tensor.HeadNorm{Weight: n.Weight, Eps: n.Eps}
}

// Package parallel lets several ranks work as one: Team runs the same function on every rank, each on a thread of its own, and Comm is how the ranks exchange tensors on the way. A rank is one device;
// all ranks live in this process. The package knows tensors and nothing of models, adapters or requests.
//
// Results are deterministic: AllReduce adds the ranks' values as a fixed tree, ((0+1)+(2+3))+((4+5)+(6+7)), and every rank ends with equal bits, whatever the order in which they came. So ranks that bring subtrees of one tree
// (tensor.Segments) end with the tree's sum, however many they are.
package parallel

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Comm is one rank's end of a group. Every rank of the group calls the same operations in the same order (Send and Recv in pairs); each call returns when this rank's result can be read and its
// arguments may be changed. When a rank fails, or does not do what the others do, every call fails until the group's task has ended: nobody waits for a rank that does not come. A Comm is used by its rank's goroutine only.
type Comm interface {
	Rank() int
	Size() int
	// AllReduce replaces each of ts, equally shaped float32 on every rank, by the sum over the ranks: neighbours are added, then their sums, and so on; the last one without a neighbour waits for the next round.
	AllReduce(ts ...tensor.Tensor) error
	// AllGather puts the ranks' parts (M × N each) side by side into dst, M × Size·N: rank r's part is columns [r·N, (r+1)·N).
	AllGather(dst, part tensor.Tensor) error
	// ReduceScatter writes to dst (M × N) the sum over the ranks of this rank's columns [Rank·N, (Rank+1)·N) of src (M × Size·N), added in their order.
	ReduceScatter(dst, src tensor.Tensor) error
	// Broadcast makes t on every rank what it is on rank root.
	Broadcast(t tensor.Tensor, root int) error
	// Send gives t to a Recv of the same shape on rank to, and returns when it has been copied.
	Send(t tensor.Tensor, to int) error
	Recv(t tensor.Tensor, from int) error
	// AllReduceHost is AllReduce for values in Go memory.
	AllReduceHost(values []float32) error
}

package checked

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Link implements tensor.Linker.
func (d *remoteDevice) Link(devices []tensor.Device, o tensor.LinkOptions) ([]tensor.Link, error) {
	c := d.check("link")
	kernels := make([]tensor.Device, len(devices))
	for i, other := range devices {
		kernels[i] = c.open(other)
	}
	if c.err != nil {
		return nil, c.err
	}
	ends, err := d.remote.Link(kernels, o)
	if err != nil {
		return nil, err
	}
	links := make([]tensor.Link, len(ends))
	for i, l := range ends {
		links[i] = &link{kernels: l, device: base(devices[i]), size: len(ends)}
	}
	return links, nil
}

// link is the checks before one end.
type link struct {
	kernels tensor.Link
	device  *device
	size    int
	closed  bool
}

func (l *link) check(op string) check {
	c := l.device.check(op)
	if l.closed {
		c.fail("the link is closed")
	}
	return c
}

// whole checks a contiguous tensor and gives how many elements it has.
func (c *check) whole(name string, t tensor.Tensor) int {
	c.float(name, t)
	if t.Rows > 1 && t.Stride != t.Cols {
		c.fail("%s is not contiguous", name)
	}
	return t.Rows * t.Cols
}

func (l *link) Ready() error {
	if c := l.check("ready"); c.err != nil {
		return c.err
	}
	return l.kernels.Ready()
}

// Hold cannot fail: of a link that is closed, the operations do.
func (l *link) Hold() (release func()) {
	if l.closed {
		return func() {}
	}
	return l.kernels.Hold()
}

func (l *link) AllGather(dst, src tensor.Tensor) error {
	c := l.check("all-gather")
	all, n := c.whole("dst", dst), c.whole("src", src)
	if n*l.size != all {
		c.fail("dst has %d elements: must have %d of each of %d devices", all, n, l.size)
	}
	if c.err != nil || n == 0 {
		return c.err
	}
	return l.kernels.AllGather(dst, src)
}

func (l *link) AllToAll(dst, src tensor.Tensor) error {
	c := l.check("all-to-all")
	n, m := c.whole("dst", dst), c.whole("src", src)
	if n != m || n%l.size != 0 {
		c.fail("dst has %d elements and src %d: must be equally many for each of %d devices", n, m, l.size)
	}
	if c.err != nil || n == 0 {
		return c.err
	}
	return l.kernels.AllToAll(dst, src)
}

// one checks an operation on one tensor with one peer.
func (l *link) one(op string, t tensor.Tensor, peer int, f func(tensor.Tensor, int) error) error {
	c := l.check(op)
	n := c.whole("t", t)
	if peer < 0 || peer >= l.size {
		c.fail("rank %d of %d", peer, l.size)
	}
	if c.err != nil || n == 0 {
		return c.err
	}
	return f(t, peer)
}

func (l *link) Broadcast(t tensor.Tensor, root int) error {
	return l.one("broadcast", t, root, l.kernels.Broadcast)
}
func (l *link) Send(t tensor.Tensor, to int) error { return l.one("send", t, to, l.kernels.Send) }
func (l *link) Recv(t tensor.Tensor, from int) error {
	return l.one("receive", t, from, l.kernels.Recv)
}

func (l *link) Abort() error { return l.end(l.kernels.Abort) }
func (l *link) Close() error { return l.end(l.kernels.Close) }

func (l *link) end(f func() error) error {
	if l.closed {
		return nil
	}
	l.closed = true
	return f()
}

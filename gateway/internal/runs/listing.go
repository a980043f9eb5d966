package runs

import "context"

// maxLists is how many lists of one owner are made at a time. A list may be megabytes, several times over on its way out.
const maxLists = 2

// listing are the lists of one owner that are being made or wait for that. It exists while there are some.
type listing struct {
	places chan struct{}
	users  int
}

// AwaitList waits until a list may be made for an owner, so that nobody fills the memory with many at once. The caller calls done when the answer is sent.
func (c *Core) AwaitList(ctx context.Context, owner string) (done func(), err error) {
	c.mu.Lock()
	l := c.listings[owner]
	if l == nil {
		l = &listing{places: make(chan struct{}, maxLists)}
		c.listings[owner] = l
	}
	l.users++
	c.mu.Unlock()
	leave := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(c.listings, owner)
		}
	}
	select {
	case l.places <- struct{}{}:
		return func() {
			<-l.places
			leave()
		}, nil
	case <-c.closed:
		leave()
		return nil, errClosing
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

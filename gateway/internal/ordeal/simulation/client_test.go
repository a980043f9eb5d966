package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// errNetwork is what a client gets instead of an answer that did not come.
var errNetwork = errors.New("the connection was lost")

// client behaves as the SDK does: it numbers what it asks for, repeats what was not answered with the same number, and waits for futures.
type client struct {
	w      *world
	number int
	owner  string
	random *rand.Rand // of what it does; nothing that happens to it changes it

	session  string
	finished bool // it has asked for its session's end

	mu       sync.Mutex
	done     bool
	doing    string
	runs     []*training
	samplers []*sampling
}

func (c *client) isDone() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

func (c *client) at() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doing
}

type answer struct {
	value any
	err   error
}

// ask sends a request, and sends it again until it is answered by something else than that it should be repeated.
func ask[T any](c *client, what string, f func(ctx context.Context, core *runs.Core) (T, error)) (T, error) {
	c.mu.Lock()
	c.doing = what
	c.mu.Unlock()
	for attempt := 0; ; attempt++ {
		a := c.send(fmt.Sprintf("c%d %s #%d", c.number, what, attempt), func(ctx context.Context, core *runs.Core) (any, error) { return f(ctx, core) })
		kind := runs.KindOf(a.err)
		if !errors.Is(a.err, errNetwork) && kind != runs.KindUnavailable && kind != runs.KindBusy && !errors.Is(a.err, runs.ErrPending) {
			v, _ := a.value.(T)
			return v, a.err
		}
		if c.w.failed() { // nothing that comes now would tell more
			var none T
			return none, errNetwork
		}
		if !errors.Is(a.err, runs.ErrPending) {
			time.Sleep(min(200*time.Millisecond<<min(attempt, 5), 5*time.Second))
		}
	}
}

// patience is how long a client waits for an answer.
const patience = 25 * time.Second

// send is one attempt. The request is on its way also when nobody waits for its answer any more.
func (c *client) send(key string, f func(ctx context.Context, core *runs.Core) (any, error)) answer {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answers := make(chan answer, 2)
	go func() {
		switch c.w.park(parked{place: toServer, key: key, client: c.number}) {
		case drop:
			answers <- answer{err: errNetwork}
			return
		case twice:
			go func() {
				c.w.park(parked{place: toServer, key: key + " again", client: c.number})
				c.deliver(context.Background(), key+" again", f, answers)
			}()
		}
		c.deliver(ctx, key, f, answers)
	}()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case a := <-answers:
		return a
	case <-timeout.C:
		return answer{err: errNetwork}
	}
}

// deliver has the gateway answer, if there is one.
func (c *client) deliver(ctx context.Context, key string, f func(ctx context.Context, core *runs.Core) (any, error), answers chan<- answer) {
	c.w.mu.Lock()
	up := c.w.up
	c.w.mu.Unlock()
	a := answer{err: errNetwork}
	if up != nil {
		value, err := f(ctx, up.core)
		c.w.mu.Lock()
		if up.stopping && errors.Is(err, store.ErrClosed) { // it closes its connections before its store
			err = errNetwork
		}
		c.w.mu.Unlock()
		if !up.isDead() && c.w.park(parked{place: fromServer, key: key, client: c.number}) != drop && (ctx.Err() == nil || !errors.Is(err, ctx.Err())) {
			a = answer{value, err}
		}
	}
	select {
	case answers <- a:
	default: // it has two already
	}
}

package plugins_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// A backend that is to end tells its gateway, serves it until that has left, and takes no other.
func TestLeave(t *testing.T) {
	m := serve(t, nil)
	a := m.attach(1)
	b := m.load(a, "")
	select {
	case <-a.Leaving():
		t.Fatal("it leaves before it is asked to")
	default:
	}
	left := make(chan struct{})
	go func() { defer close(left); m.Leave(t.Context()) }()
	<-a.Leaving()
	create(t, b, "a")
	if _, err := forwardBackward(t.Context(), b, "a", 1); err != nil {
		t.Error(err)
	}
	if _, err := plugins.Attach(t.Context(), m.request(2)); err == nil || !strings.Contains(err.Error(), "about to end") {
		t.Errorf("another gateway: %v", err)
	}
	select {
	case <-left:
		t.Fatal("it did not wait for its gateway")
	case <-time.After(3 * m.options.Expiry): // renewals go on
	}
	if why := a.Reason(); why != "" {
		t.Fatal(why)
	}
	a.Close()
	<-left
}

// A gateway that does not leave is not waited for any longer than was said, and a backend that nobody has not at all.
func TestLeaveInTime(t *testing.T) {
	m := serve(t, nil)
	a := m.attach(1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	m.Leave(ctx)
	if a.Reason() != "" || ctx.Err() == nil {
		t.Errorf("%q, %v", a.Reason(), ctx.Err())
	}
	free := serve(t, nil)
	free.attach(1).Close()
	free.Leave(t.Context())
}

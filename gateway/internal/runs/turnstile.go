package runs

import "time"

// turnstile is a mutex whose holder may wait for the store: who waits for it waits at a channel, which a simulation of time sees. Its capacity is 1.
type turnstile chan struct{}

// turnPatience is how long one waits before one asks what the holder waits for.
const turnPatience = time.Second

func (t turnstile) Lock() { t <- struct{}{} }

func (t turnstile) Unlock() { <-t }

// lockWithin is Lock, and gives up after a time.
func (t turnstile) lockWithin(patience time.Duration) bool {
	select {
	case t <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

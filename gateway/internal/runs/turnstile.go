package runs

// turnstile is a mutex whose holder may wait for the store: who waits for it waits at a channel, which a simulation of time sees. Its capacity is 1.
type turnstile chan struct{}

func (t turnstile) Lock() { t <- struct{}{} }

func (t turnstile) Unlock() { <-t }

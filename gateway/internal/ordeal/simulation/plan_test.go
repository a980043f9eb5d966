package simulation

import (
	"math/rand/v2"
	"time"
)

// plan says what can go wrong in one seed, and how often: each seed has some of the kinds, so that no kind hides another.
type plan struct {
	parked     float64 // of the answers to commits and calls: which wait for the scheduler, too
	gateway    float64 // per step: the gateway ends
	power      float64 // of these: with the power
	stop       float64 // per step: the gateway is told to stop
	backend    float64 // per step: a backend ends
	cut        float64 // per step: the way to a backend is cut, or is there again
	partition  float64 // per step: a client's way to the gateway, likewise
	jump       float64 // per step: the wall clock is set
	pause      float64 // per step: nothing happens for a while
	drop       float64 // of messages of clients
	twice      float64 // of messages of clients and calls
	held       float64 // of everything: it waits for long
	badSync    float64 // of syncs
	steps      int     // after so many nothing goes wrong any more
	clients    int
	operations int  // about what a client does
	lasting    bool // no checkpoint has a time to live
}

// crashes bounds how often a gateway ends in one seed: each recovery takes time.
const crashes = 4

func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 2))
	some := func(share, least, most float64) float64 {
		if r.Float64() > share {
			return 0
		}
		return least + r.Float64()*(most-least)
	}
	p := plan{
		parked:     []float64{0.2, 0.5, 1}[r.IntN(3)],
		gateway:    some(0.8, 0.001, 0.01),
		power:      []float64{0, 0.5, 1}[r.IntN(3)],
		stop:       some(0.3, 0.001, 0.004),
		backend:    some(0.5, 0.001, 0.01),
		cut:        some(0.3, 0.001, 0.01),
		partition:  some(0.3, 0.001, 0.01),
		jump:       some(0.3, 0.001, 0.01),
		pause:      some(0.5, 0.001, 0.02),
		drop:       some(0.5, 0.01, 0.2),
		twice:      some(0.5, 0.01, 0.2),
		held:       some(0.4, 0.01, 0.1),
		badSync:    some(0.1, 0.01, 0.1),
		steps:      200 + r.IntN(1000),
		clients:    1 + r.IntN(3),
		operations: 4 + r.IntN(12),
	}
	return p
}

// while draws how long something takes, from a millisecond to about ten seconds.
func while(r *rand.Rand) time.Duration {
	return time.Duration(float64(time.Millisecond) * pow10(r.Float64()*4))
}

func pow10(x float64) float64 {
	v := 1.0
	for ; x >= 1; x-- {
		v *= 10
	}
	return v * (1 + 9*x*x) // about
}

package engine

import "time"

// The sampler must not wait long for training, nor a stream for the prompts of others: at least one decoding step in samplerInterval. So training passes and prompts are cut into device steps of about stepTime,
// by the speed that was measured with those before. Cuts change no bits.
const (
	// samplerInterval is how long training may keep the device before the sampler gets a turn, and turn is how long that turn lasts: decoding steps until it is over. Equal times give each about
	// half of the device while both have work.
	samplerInterval = 100 * time.Millisecond
	turn            = 100 * time.Millisecond
	stepTime        = 50 * time.Millisecond
	// aloneTime is stepTime for prompts that nobody waits for yet: larger pieces are a little faster.
	aloneTime = 250 * time.Millisecond
)

// turns is what the sampler has had of the device.
type turns struct {
	count int64
	time  time.Duration
}

// trainingWork is about how many operations a training pass needs for each parameter and token: two forward, and as many for the gradient by the inputs.
const trainingWork = 4

// leastWork is a device step that is not worth cutting further, in operations, and leastPrefill the same in tokens of a prompt.
const (
	leastWork    = 1e8
	leastPrefill = 16
)

// pace is what the sizes of device steps are made from. It belongs to the device goroutine.
type pace struct {
	training float64     // operations per second
	prefill  float64     // tokens per second
	steps    [64]float64 // seconds of the sampler's steps, by the length of their number of tokens in bits
	cycle    float64     // seconds of training's cycles, see boundStep

	// Tests set these, to be independent of time.
	fixedWork    float64
	fixedPrefill int
	fixedStep    func(tokens int) float64
	fixedCycle   float64
}

// firstShare is the part of a device's peak that the first passes are taken to reach: of several published figures for training, and of what is estimated for these kernels, a low one.
const firstShare = 0.25

// newPace begins with a guess that is low for devices of today: for a processor's thread, for a GPU, or for one that knows its peak, which is 0 else.
func newPace(gpu bool, peak float64, threads int, parameters int64) pace {
	speed := 1e10 * float64(threads)
	switch {
	case peak > 0:
		speed = firstShare * peak
	case gpu:
		speed = 1e13
	}
	return pace{training: speed, prefill: speed / (2 * float64(parameters))}
}

// stepWork is how many operations of training go between two yields.
func (p *pace) stepWork() float64 {
	if p.fixedWork > 0 {
		return p.fixedWork
	}
	return max(leastWork, p.training*stepTime.Seconds())
}

// cycleTime is about how long a cycle may be: whoever comes after its beginning waits for its end.
const cycleTime = 10 * time.Second

// cycleTokens is how many tokens a cycle may have on a model of so many parameters, most at most.
func (p *pace) cycleTokens(parameters int64, most int) int {
	if p.fixedWork > 0 {
		return most
	}
	return int(min(float64(most), max(1, cycleTime.Seconds()*p.training/(trainingWork*float64(parameters)))))
}

// trained notes that a pass of so many operations took d.
func (p *pace) trained(work float64, d time.Duration) { p.training = follow(p.training, work, d) }

// prefillTokens is how many tokens of prompts go through the model in a step of about d, most at most.
func (p *pace) prefillTokens(d time.Duration, most int) int {
	if p.fixedPrefill > 0 {
		return min(most, p.fixedPrefill)
	}
	return min(most, max(leastPrefill, int(p.prefill*d.Seconds())))
}

// prefilled notes that a step with so many tokens of prompts took d.
func (p *pace) prefilled(tokens int, d time.Duration) {
	if tokens >= leastPrefill { // else most of it was something else
		p.prefill = follow(p.prefill, float64(tokens), d)
	}
}

// follow moves a speed a third of the way to what was measured.
func follow(speed, amount float64, d time.Duration) float64 {
	if d <= 0 || amount <= 0 {
		return speed
	}
	return speed + (amount/d.Seconds()-speed)/3
}

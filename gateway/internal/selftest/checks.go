package selftest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// rate is the learning rate of all training here: large enough that every step shows in the log-probabilities, also in bfloat16.
const rate = 2e-3

// tests is what the checks share.
type tests struct {
	*session
	data      [][]int // the token sequences that are trained on and scored
	prompt    []int
	dir       string     // for files
	reference *Reference // nil where there is none
}

// texts become the sequences: of different lengths, in words, numbers and code, so that every tokenizer has something to do.
var texts = []string{
	"The blacksmith heats the iron until it glows, and then shapes it on the anvil.",
	"1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144",
	"What is 2 + 3? It is 5.",
	"func add(a, b int) int { return a + b } // adds two numbers",
	"A tinsmith makes and mends things of tin: cups, lanterns, pails and roofs. The work wants a light hand, for the sheet is thin, and what was bent once keeps the mark of it.",
	"Eins, zwei, drei; un, deux, trois; uno, dos, tres.",
}

// prepare begins a session and makes the data.
func prepare(ctx context.Context, c *client) (*tests, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	t := &tests{session: s}
	for _, text := range texts {
		tokens, err := c.tokens(ctx, text)
		if err != nil {
			return nil, err
		}
		if len(tokens) < 3 {
			return nil, fmt.Errorf("/tokenize: %q has %d tokens; a sequence to train on needs 3", text, len(tokens))
		}
		t.data = append(t.data, tokens)
	}
	t.prompt = t.data[4][:len(t.data[4])/2+1] // of a text that goes on
	return t, nil
}

// steps are n steps over different parts of the data.
func (t *tests) steps(n int) [][][]int {
	out := make([][][]int, n)
	for i := range out {
		k := i % (len(t.data) - 1)
		out[i] = t.data[k : k+2]
	}
	return out
}

// order: operations that are sent ahead, and even in reverse, are done in the order of their numbers.
func (t *tests) order(ctx context.Context, r *tally) (string, error) {
	steps := t.steps(4)
	awaited, err := t.trainer(ctx, 1)
	if err != nil {
		return "", err
	}
	want, err := awaited.train(ctx, rate, steps...)
	if err != nil {
		return "", err
	}
	for _, way := range []string{"sent without waiting", "sent in reverse order"} {
		ahead, err := t.trainer(ctx, 1)
		if err != nil {
			return "", err
		}
		var requests []request
		for _, data := range steps {
			requests = append(requests, ahead.backwardRequest(data), ahead.stepRequest(rate))
		}
		futures := make([]future, len(requests))
		for i := range requests {
			if way == "sent in reverse order" {
				i = len(requests) - 1 - i
			}
			if futures[i], err = t.start(ctx, requests[i]); err != nil {
				return "", err
			}
		}
		got := make([]pass, len(steps))
		for i, f := range futures {
			var into any = &struct{}{}
			if i%2 == 0 {
				into = &got[i/2]
			}
			if err := t.wait(ctx, f, into); err != nil {
				return "", err
			}
		}
		r.passes(way, want, got)
	}
	return fmt.Sprintf("%d steps awaited, sent ahead, and sent in reverse", len(steps)), t.learned(ctx, awaited, t.data[:2], want[0])
}

// learned is an error where training has changed nothing, so that comparisons of trained adapters would show nothing.
func (t *tests) learned(ctx context.Context, trained *trainer, data [][]int, first pass) error {
	after, err := trained.score(ctx, data)
	if err != nil {
		return err
	}
	if d, _, _ := largest(first, after); d == 0 {
		return errors.New("training has changed no log-probability, so nothing is shown by comparing them")
	}
	return nil
}

// mostOfStep is what accumulation may differ by, in parts of what the steps have changed: sums of floats depend on how they are cut, and Adam makes something of the last bits.
const mostOfStep = 0.05

// accumulation: gradients of parts add up to the gradient of the whole.
func (t *tests) accumulation(ctx context.Context, r *tally) (string, error) {
	whole, err := t.trainer(ctx, 2)
	if err != nil {
		return "", err
	}
	parts, err := t.trainer(ctx, 2)
	if err != nil {
		return "", err
	}
	before, err := whole.score(ctx, t.data)
	if err != nil {
		return "", err
	}
	for range 2 {
		all, err := whole.train(ctx, rate, t.data)
		if err != nil {
			return "", err
		}
		var sum float64
		for _, half := range [][][]int{t.data[:2], t.data[2:]} {
			var p pass
			q := parts.backwardRequest(half)
			if err := t.do(ctx, q.path, q.body, &p); err != nil {
				return "", err
			}
			sum += p.Metrics["loss:sum"]
		}
		q := parts.stepRequest(rate)
		if err := t.do(ctx, q.path, q.body, &struct{}{}); err != nil {
			return "", err
		}
		r.compared++
		if loss := all[0].Metrics["loss:sum"]; !(math.Abs(sum-loss) <= 1e-2*math.Abs(loss)) {
			r.differ("the loss of the parts together", strconv.FormatFloat(loss, 'g', -1, 64), strconv.FormatFloat(sum, 'g', -1, 64))
		}
	}
	one, err := whole.score(ctx, t.data)
	if err != nil {
		return "", err
	}
	two, err := parts.score(ctx, t.data)
	if err != nil {
		return "", err
	}
	step, _, _ := largest(before, one)
	distance, i, j := largest(one, two)
	for _, o := range one.Outputs {
		r.compared += len(o.Logprobs.Data)
	}
	if !(distance <= mostOfStep*step) {
		r.differ(fmt.Sprintf("after 2 steps, sequence %d, position %d", i, j), number(one.Outputs[i].Logprobs.Data[j]), number(two.Outputs[i].Logprobs.Data[j]))
	}
	return fmt.Sprintf("largest difference %.2g, where the steps changed %.2g (allowed: %g of that)", distance, step, mostOfStep), nil
}

// script is what a user does: trains, saves, samples.
func (t *tests) script(ctx context.Context, s *session, name string) (passes []pass, answer sampled, err error) {
	a, err := s.trainer(ctx, 3)
	if err != nil {
		return nil, answer, err
	}
	if passes, err = a.train(ctx, rate, t.steps(4)...); err != nil {
		return nil, answer, err
	}
	path, err := a.save(ctx, "weights_for_sampler", name)
	if err != nil {
		return nil, answer, err
	}
	from, err := s.sampler(ctx, path)
	if err != nil {
		return nil, answer, err
	}
	answer, err = from.sample(ctx, t.prompt, 3, 16, 1)
	return passes, answer, err
}

// neighbours is the size of the crowd.
const neighbours = 6

// crowd: a run has the same results alone and beside others that train and sample.
func (t *tests) crowd(ctx context.Context, r *tally) (string, error) {
	want, wanted, err := t.script(ctx, t.session, "alone")
	if err != nil {
		return "", err
	}
	busy, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	var steps atomic.Int64
	begun := make(chan error, 2*neighbours) // each says twice at most how it stands, and nobody may wait for it
	for i := range neighbours {
		all.Go(func() { begun <- t.neighbour(busy, i, &steps, begun) })
	}
	for range neighbours {
		if err := <-begun; err != nil {
			stop()
			all.Wait()
			return "", fmt.Errorf("a neighbour: %w", err)
		}
	}
	before := steps.Load()
	own, err := t.client.session(ctx)
	if err != nil {
		return "", err
	}
	got, answer, err := t.script(ctx, own, "crowded")
	during := steps.Load() - before
	stop()
	go func() {
		all.Wait()
		close(begun)
	}()
	for other := range begun {
		if other != nil && !errors.Is(other, context.Canceled) && err == nil {
			err = fmt.Errorf("a neighbour: %w", other)
		}
	}
	if err != nil {
		return "", err
	}
	if during == 0 {
		return "", errors.New("the neighbours did nothing meanwhile, so nothing is shown")
	}
	r.passes("beside others", want, got)
	r.samples("beside others", wanted, answer)
	return fmt.Sprintf("beside %d runs that made %d steps meanwhile", neighbours, during), nil
}

// neighbour trains and samples until ctx ends. After its first step and sample it says so by nil on begun.
func (t *tests) neighbour(ctx context.Context, number int, steps *atomic.Int64, begun chan<- error) error {
	s, err := t.client.session(ctx)
	if err != nil {
		return err
	}
	a, err := s.trainer(ctx, 100+number)
	if err != nil {
		return err
	}
	base, err := s.sampler(ctx, "")
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		k := (number + i) % len(t.data)
		if _, err := a.train(ctx, rate, t.data[k:]); err != nil {
			return err
		}
		if _, err := base.sample(ctx, t.data[k][:2], 2, 12, 1); err != nil {
			return err
		}
		steps.Add(1)
		if i == 0 {
			begun <- nil
		}
	}
}

// agreement: the sampler's log-probabilities are the trainer's.
func (t *tests) agreement(ctx context.Context, r *tally) (string, error) {
	a, err := t.trainer(ctx, 4)
	if err != nil {
		return "", err
	}
	if _, err := a.train(ctx, rate, t.steps(3)...); err != nil {
		return "", err
	}
	path, err := a.save(ctx, "weights_for_sampler", "agreement")
	if err != nil {
		return "", err
	}
	s, err := t.sampler(ctx, path)
	if err != nil {
		return "", err
	}
	sequences := 0
	for i, prompt := range t.data {
		answer, err := s.sample(ctx, prompt, 2, 24, 1)
		if err != nil {
			return "", err
		}
		alone, err := a.score(ctx, [][]int{prompt})
		if err != nil {
			return "", err
		}
		if len(answer.PromptLogprobs) != len(prompt) || len(alone.Outputs) != 1 {
			return "", fmt.Errorf("the prompt has %d tokens, and %d log-probabilities came", len(prompt), len(answer.PromptLogprobs))
		}
		r.bits(fmt.Sprintf("prompt %d: the sampler beside the trainer", i), alone.Outputs[0].Logprobs.Data, answer.PromptLogprobs[1:], 1)
		for j, one := range answer.Sequences {
			scored, err := a.score(ctx, [][]int{append(append([]int{}, prompt...), one.Tokens...)})
			if err != nil {
				return "", err
			}
			trainer := scored.Outputs[0].Logprobs.Data
			r.bits(fmt.Sprintf("prompt %d, sample %d: the sampler beside the trainer", i, j), trainer[len(trainer)-len(one.Tokens):], one.Logprobs, 0)
			sequences++
		}
	}
	return fmt.Sprintf("%d prompts and %d samples at temperature 1", len(t.data), sequences), nil
}

// interrupted compares three runs of the same steps: one is undisturbed, at the kill one holds a gradient that no step has taken, and one has operations under way.
func (t *tests) interrupted(ctx context.Context, r *tally, what string, kill func(context.Context) error) error {
	steps := t.steps(6)
	calm, err := t.trainer(ctx, 5)
	if err != nil {
		return err
	}
	want, err := calm.train(ctx, rate, steps...)
	if err != nil {
		return err
	}
	last, err := calm.score(ctx, t.data)
	if err != nil {
		return err
	}

	holding, err := t.trainer(ctx, 5)
	if err != nil {
		return err
	}
	held, err := holding.train(ctx, rate, steps[:3]...)
	if err != nil {
		return err
	}
	var p pass
	q := holding.backwardRequest(steps[3])
	if err := t.do(ctx, q.path, q.body, &p); err != nil {
		return err
	}
	held = append(held, p)

	working, err := t.trainer(ctx, 5)
	if err != nil {
		return err
	}
	worked, err := working.train(ctx, rate, steps[:3]...)
	if err != nil {
		return err
	}
	var futures []future
	for _, data := range steps[3:5] {
		for _, q := range []request{working.backwardRequest(data), working.stepRequest(rate)} {
			f, err := t.start(ctx, q)
			if err != nil {
				return err
			}
			futures = append(futures, f)
		}
	}
	if err := kill(ctx); err != nil {
		return err
	}

	q = holding.stepRequest(rate)
	if err := t.do(ctx, q.path, q.body, &struct{}{}); err != nil {
		return err
	}
	rest, err := holding.train(ctx, rate, steps[4:]...)
	if err != nil {
		return err
	}
	held = append(held, rest...)
	for i, f := range futures {
		var p pass
		if err := t.wait(ctx, f, &p); err != nil {
			return err
		}
		if i%2 == 0 {
			worked = append(worked, p)
		}
	}
	if rest, err = working.train(ctx, rate, steps[5]); err != nil {
		return err
	}
	worked = append(worked, rest...)
	for _, run := range []struct {
		name   string
		run    *trainer
		passes []pass
	}{{"with a gradient held", holding, held}, {"with operations under way", working, worked}} {
		where := what + ", " + run.name
		after, err := run.run.score(ctx, t.data)
		if err != nil {
			return err
		}
		r.passes(where, want, run.passes)
		r.pass(where+", the trained adapter", last, after)
	}
	return nil
}

// pluginKill: a run goes on when the backend was killed.
func (t *tests) pluginKill(ctx context.Context, r *tally) (string, error) {
	err := t.interrupted(ctx, r, "after a kill of the plugin", func(ctx context.Context) error {
		before, err := health(ctx, t.client)
		if err != nil {
			return err
		}
		if err := t.server.KillPlugin(ctx); err != nil {
			return err
		}
		for begun := time.Now(); time.Since(begun) < t.patience; {
			now, err := health(ctx, t.client)
			if err != nil {
				return err
			}
			if now.Restarts > before.Restarts {
				return nil
			}
			if err := pause(ctx, restartedSoon); err != nil {
				return err
			}
		}
		return fmt.Errorf("the plugin was not started again within %v of the kill", t.patience)
	})
	return "one run held a gradient, one had sent four operations", err
}

// serverKill: a run goes on when the whole server was killed.
func (t *tests) serverKill(ctx context.Context, r *tally) (string, error) {
	err := t.interrupted(ctx, r, "after a kill of the server", t.server.KillAndStart)
	return "the same, and started again over its records", err
}

// roundTrip: a checkpoint that is exported as a PEFT adapter and imported again is the adapter that it was.
func (t *tests) roundTrip(ctx context.Context, r *tally) (string, error) {
	a, err := t.trainer(ctx, 6)
	if err != nil {
		return "", err
	}
	if _, err := a.train(ctx, rate, t.steps(3)...); err != nil {
		return "", err
	}
	path, err := a.save(ctx, "weights", "roundtrip")
	if err != nil {
		return "", err
	}
	want, err := a.score(ctx, t.data)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(t.dir, "peft")
	defer os.RemoveAll(dir)
	if err := t.server.Export(ctx, path, dir); err != nil {
		return "", err
	}
	if err := checkPEFT(dir); err != nil {
		return "", err
	}
	training, sampling, err := t.importAdapter(ctx, dir)
	if err != nil {
		return "", err
	}
	b, err := t.trainerFrom(ctx, training)
	if err != nil {
		return "", err
	}
	got, err := b.score(ctx, t.data)
	if err != nil {
		return "", err
	}
	r.pass("the trainer of the imported adapter", want, got)
	s, err := t.sampler(ctx, sampling)
	if err != nil {
		return "", err
	}
	answer, err := s.sample(ctx, t.data[0], 1, 1, 0)
	if err != nil {
		return "", err
	}
	if len(answer.PromptLogprobs) > 0 {
		alone, err := a.score(ctx, t.data[:1])
		if err != nil {
			return "", err
		}
		r.bits("the sampler of the imported adapter", alone.Outputs[0].Logprobs.Data, answer.PromptLogprobs[1:], 1)
	}
	fresh, err := t.trainer(ctx, 6)
	if err != nil {
		return "", err
	}
	return "through the files of a PEFT adapter", t.learned(ctx, fresh, t.data, want)
}

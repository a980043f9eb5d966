package runs

import (
	"context"
	"errors"
	"strconv"
	"strings"
)

// resolveProvenance puts the log-probabilities that the server itself recorded when it sampled in place of those that the client sent. Every row of target_tokens belongs to
// a span; rows of sampled spans take the recorded value, all others must have advantage 0. What is recorded is the result of the sample, which is kept until its session has ended, or one of direct sampling.
func (c *Core) resolveProvenance(ctx context.Context, owner string, op ForwardBackward, req *forwardBackward) error {
	results := map[string]*SampleResult{}
	for i := range req.Data {
		d, spans := &req.Data[i], op.Data[i].LossSpans
		bad := func(format string, args ...any) error {
			e := invalidf(format, args...)
			e.Message = "data[" + itoa(i) + "].loss_fn_input_spans: " + e.Message
			return e
		}
		if spans == nil {
			return bad("stable_reinforce needs the provenance of every datum; use datums made from a sampling client with record_stability_info, or loss_fn importance_sampling, ppo or cispo")
		}
		recorded := make([]float32, len(d.Targets))
		row := 0
		for n, s := range spans {
			if s.Length < 0 || s.Offset < 0 || s.Length > int64(len(d.Targets)-row) {
				return bad("span %d has offset %d and length %d; %d rows are left for it", n, s.Offset, s.Length, len(d.Targets)-row)
			}
			rows := d.Targets[row : row+int(s.Length)]
			if !s.Sampled {
				for k := range rows {
					if d.Advantages[row+k] != 0 {
						return bad("row %d was not sampled, so its advantage must be 0, not %v", row+k, d.Advantages[row+k])
					}
				}
				row += int(s.Length)
				continue
			}
			sequence, err := c.recordedSequence(ctx, owner, s.SequenceID, results)
			if err != nil {
				return bad("span %d: %s", n, err)
			}
			if s.Offset > int64(len(sequence.Tokens)) || s.Length > int64(len(sequence.Tokens))-s.Offset {
				return bad("span %d: sequence %s has %d sampled tokens, not %d from %d", n, quote(s.SequenceID), len(sequence.Tokens), s.Length, s.Offset)
			}
			for k, target := range rows {
				if sequence.Tokens[int(s.Offset)+k] != target {
					return bad("row %d has target token %d, but sequence %s has %d there", row+k, target, quote(s.SequenceID), sequence.Tokens[int(s.Offset)+k])
				}
			}
			copy(recorded[row:], sequence.Logprobs[s.Offset:s.Offset+s.Length])
			row += int(s.Length)
		}
		if row != len(d.Targets) {
			return bad("the spans cover %d rows of %d", row, len(d.Targets))
		}
		d.Logprobs = recorded
	}
	return nil
}

// recordedSequence finds a sampled sequence by its id.
func (c *Core) recordedSequence(ctx context.Context, owner, id string, results map[string]*SampleResult) (SampledSequence, error) {
	if strings.HasPrefix(id, directPrefix) {
		if results[id] == nil {
			result, err := c.directSequence(ctx, owner, id)
			if err != nil {
				return SampledSequence{}, err
			}
			results[id] = result
		}
		return results[id].Sequences[0], nil
	}
	cut := strings.LastIndexByte(id, ':')
	if cut < 0 {
		return SampledSequence{}, invalidf("%s is not the id of a sampled sequence", quote(id))
	}
	n, err := strconv.Atoi(id[cut+1:])
	if err != nil || n < 0 {
		return SampledSequence{}, invalidf("%s is not the id of a sampled sequence", quote(id))
	}
	request := id[:cut]
	result := results[request]
	if result == nil {
		outcome, err := c.outcome(ctx, owner, request, 0)
		switch {
		case errors.Is(err, ErrPending):
			return SampledSequence{}, invalidf("sequence %s is not finished yet", quote(id))
		case KindOf(err) != 0:
			return SampledSequence{}, invalidf("no sequence %s is recorded", quote(id))
		case err != nil:
			return SampledSequence{}, err
		case outcome.Sample == nil:
			return SampledSequence{}, invalidf("%s is not the id of a sampled sequence", quote(id))
		}
		result = outcome.Sample
		results[request] = result
	}
	if n >= len(result.Sequences) {
		return SampledSequence{}, invalidf("no sequence %s is recorded", quote(id))
	}
	return result.Sequences[n], nil
}

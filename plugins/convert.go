package plugins

import (
	"fmt"
	"math"
	"time"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
)

// Conversions between the contract's types and the wire. The directions *ToPB cannot fail. The directions *FromPB read outside bytes: they fail
// with KindInvalid on what has no meaning (a length that is no multiple of four, a number that does not fit), never panic, and allocate
// in proportion to the message that protobuf has already decoded.

func narrow(field string, v int64) (int, error) {
	if v < math.MinInt32 || v > math.MaxInt32 {
		return 0, Invalidf(field, "%d is out of range", v)
	}
	return int(v), nil
}

func configToPB(c *AdapterConfig) *backendpb.AdapterConfig {
	return &backendpb.AdapterConfig{
		Rank: int64(c.Rank), Seed: c.Seed, TrainAttention: c.TrainAttention, TrainMlp: c.TrainMLP, TrainUnembed: c.TrainUnembed, Modules: c.Modules, Alpha: c.Alpha,
	}
}

func configFromPB(p *backendpb.AdapterConfig) (AdapterConfig, error) {
	rank, err := narrow("config.rank", p.GetRank())
	return AdapterConfig{
		Rank: rank, Seed: p.GetSeed(), TrainAttention: p.GetTrainAttention(), TrainMLP: p.GetTrainMlp(), TrainUnembed: p.GetTrainUnembed(), Modules: p.GetModules(), Alpha: p.GetAlpha(),
	}, err
}

func adapterInfoToPB(a *AdapterInfo) *backendpb.AdapterInfo {
	return &backendpb.AdapterInfo{Config: configToPB(&a.Config), Version: a.Version, Step: a.Step, Bytes: a.Bytes, Notices: a.Notices}
}

func adapterInfoFromPB(p *backendpb.AdapterInfo) (AdapterInfo, error) {
	c, err := configFromPB(p.GetConfig())
	return AdapterInfo{Config: c, Version: p.GetVersion(), Step: p.GetStep(), Bytes: p.GetBytes(), Notices: p.GetNotices()}, err
}

func modelToPB(m *ModelInfo) *backendpb.ModelInfo {
	p := &backendpb.ModelInfo{
		Architecture: m.Architecture, Parameters: m.Parameters, Layers: int64(m.Layers), HiddenSize: int64(m.HiddenSize), VocabSize: int64(m.VocabSize),
		MaxContextLength: int64(m.MaxContextLength), Dtype: m.DType, Device: m.Device, Arithmetic: m.Arithmetic, ModelHash: m.ModelHash, MaxRank: int64(m.MaxRank), TiedHead: m.TiedHead,
		Products: m.Products,
	}
	for _, s := range m.Memory {
		p.Memory = append(p.Memory, &backendpb.MemoryShare{Name: s.Name, Bytes: s.Bytes, Detail: s.Detail})
	}
	return p
}

func modelFromPB(p *backendpb.ModelInfo) (ModelInfo, error) {
	m := ModelInfo{
		Architecture: p.GetArchitecture(), Parameters: p.GetParameters(), DType: p.GetDtype(), Device: p.GetDevice(), Arithmetic: p.GetArithmetic(), ModelHash: p.GetModelHash(), TiedHead: p.GetTiedHead(),
		Products: p.GetProducts(),
	}
	err := narrowAll([]narrowing{
		{"layers", p.GetLayers(), &m.Layers}, {"hidden_size", p.GetHiddenSize(), &m.HiddenSize}, {"vocab_size", p.GetVocabSize(), &m.VocabSize},
		{"max_context_length", p.GetMaxContextLength(), &m.MaxContextLength}, {"max_rank", p.GetMaxRank(), &m.MaxRank},
	})
	for _, s := range p.GetMemory() {
		m.Memory = append(m.Memory, MemoryShare{Name: s.GetName(), Bytes: s.GetBytes(), Detail: s.GetDetail()})
	}
	return m, err
}

type narrowing struct {
	field string
	from  int64
	to    *int
}

func narrowAll(all []narrowing) error {
	for _, n := range all {
		v, err := narrow(n.field, n.from)
		if err != nil {
			return err
		}
		*n.to = v
	}
	return nil
}

func statusToPB(s *Status) *backendpb.StatusResponse {
	return &backendpb.StatusResponse{
		TimeUnixNano: s.Time.UnixNano(), BootId: s.BootID, Adapters: int64(s.Adapters), Versions: int64(s.Versions), QueuedTraining: int64(s.QueuedTraining),
		RunningSamples: int64(s.RunningSamples), WaitingSamples: int64(s.WaitingSamples), Cycles: s.Cycles, CycleSeconds: s.CycleSeconds,
		TrainedTokens: s.TrainedTokens, SampledTokens: s.SampledTokens, PrefillTokens: s.PrefillTokens, KvPages: int64(s.KVPages), KvPagesFree: int64(s.KVPagesFree),
		CyclePasses: s.CyclePasses, CycleSteps: s.CycleSteps, SamplingTurns: s.SamplingTurns, SamplingSeconds: s.SamplingSeconds,
		AdapterBytes: s.AdapterBytes, SpilledBytes: s.SpilledBytes, MemoryBytes: s.MemoryBytes, MemoryLimit: s.MemoryLimit, WeightBytes: s.WeightBytes, LastProgressAgeNanos: int64(s.LastProgressAge), NoRoom: s.NoRoom,
	}
}

func statusFromPB(p *backendpb.StatusResponse) (Status, error) {
	s := Status{
		Time: time.Unix(0, p.GetTimeUnixNano()), BootID: p.GetBootId(), Cycles: p.GetCycles(), CycleSeconds: p.GetCycleSeconds(),
		TrainedTokens: p.GetTrainedTokens(), SampledTokens: p.GetSampledTokens(), PrefillTokens: p.GetPrefillTokens(),
		CyclePasses: p.GetCyclePasses(), CycleSteps: p.GetCycleSteps(), SamplingTurns: p.GetSamplingTurns(), SamplingSeconds: p.GetSamplingSeconds(),
		AdapterBytes: p.GetAdapterBytes(), SpilledBytes: p.GetSpilledBytes(), MemoryBytes: p.GetMemoryBytes(), MemoryLimit: p.GetMemoryLimit(), WeightBytes: p.GetWeightBytes(), LastProgressAge: time.Duration(p.GetLastProgressAgeNanos()), NoRoom: p.GetNoRoom(),
	}
	err := narrowAll([]narrowing{
		{"adapters", p.GetAdapters(), &s.Adapters}, {"versions", p.GetVersions(), &s.Versions}, {"queued_training", p.GetQueuedTraining(), &s.QueuedTraining},
		{"running_samples", p.GetRunningSamples(), &s.RunningSamples}, {"waiting_samples", p.GetWaitingSamples(), &s.WaitingSamples},
		{"kv_pages", p.GetKvPages(), &s.KVPages}, {"kv_pages_free", p.GetKvPagesFree(), &s.KVPagesFree},
	})
	return s, err
}

func forwardBackwardToPB(r *ForwardBackwardRequest) *backendpb.ForwardBackwardRequest {
	p := &backendpb.ForwardBackwardRequest{
		Adapter: r.Adapter, Position: r.Position, Loss: r.Loss, LossConfig: r.LossConfig, ForwardOnly: r.ForwardOnly, Data: make([]*backendpb.Datum, len(r.Data)), Share: shareToPB(r.Share),
	}
	for i := range r.Data {
		d := &r.Data[i]
		p.Data[i] = &backendpb.Datum{
			Tokens: packInts(d.Tokens), Targets: packInts(d.Targets), K: int64(d.K), Weights: packFloats(d.Weights),
			Logprobs: packFloats(d.Logprobs), Advantages: packFloats(d.Advantages), SequenceRatioMask: packFloats(d.SequenceRatioMask),
		}
	}
	return p
}

func forwardBackwardFromPB(p *backendpb.ForwardBackwardRequest) (ForwardBackwardRequest, error) {
	r := ForwardBackwardRequest{
		Adapter: p.GetAdapter(), Position: p.GetPosition(), Loss: p.GetLoss(), LossConfig: p.GetLossConfig(), ForwardOnly: p.GetForwardOnly(), Data: make([]Datum, len(p.GetData())), Share: shareFromPB(p.GetShare()),
	}
	for i, pd := range p.GetData() {
		d, field := &r.Data[i], fmt.Sprintf("data[%d]", i)
		var u unpacker
		d.Tokens = u.ints(field+".tokens", pd.GetTokens())
		d.Targets = u.ints(field+".target_tokens", pd.GetTargets())
		d.K = u.narrow(field+".k", pd.GetK())
		d.Weights = u.floats(field+".weights", pd.GetWeights())
		d.Logprobs = u.floats(field+".logprobs", pd.GetLogprobs())
		d.Advantages = u.floats(field+".advantages", pd.GetAdvantages())
		d.SequenceRatioMask = u.floats(field+".sequence_ratio_mask", pd.GetSequenceRatioMask())
		if u.err != nil {
			return ForwardBackwardRequest{}, u.err
		}
	}
	return r, nil
}

// unpacker keeps the first error of a row of conversions.
type unpacker struct{ err error }

func (u *unpacker) ints(field string, b []byte) []int32 {
	v, err := unpackInts(field, b)
	u.keep(err)
	return v
}

func (u *unpacker) floats(field string, b []byte) []float32 {
	v, err := unpackFloats(field, b)
	u.keep(err)
	return v
}

func (u *unpacker) narrow(field string, v int64) int {
	n, err := narrow(field, v)
	u.keep(err)
	return n
}

func (u *unpacker) keep(err error) {
	if u.err == nil {
		u.err = err
	}
}

func sampleToPB(r *SampleRequest) *backendpb.SampleRequest {
	return &backendpb.SampleRequest{
		Id: r.ID, Adapter: r.Adapter, Version: r.Version, Prompt: packInts(r.Prompt), NumSamples: int64(r.NumSamples), MaxTokens: int64(r.MaxTokens),
		Temperature: r.Temperature, TopK: int64(r.TopK), TopP: r.TopP, MinP: r.MinP, Seed: r.Seed, StopTokens: packInts(r.StopTokens), MinTokens: int64(r.MinTokens),
		FrequencyPenalty: r.FrequencyPenalty, PresencePenalty: r.PresencePenalty, RepetitionPenalty: r.RepetitionPenalty, LogitBias: r.LogitBias,
		TopKSampledLogprobs: int64(r.TopKSampledLogprobs), PromptLogprobs: r.PromptLogprobs, PromptLogprobsLastN: int64(r.PromptLogprobsLastN),
		TopKPromptLogprobs: int64(r.TopKPromptLogprobs), TargetPromptTokens: packInts(r.TargetPromptTokens), TargetPromptK: int64(r.TargetPromptK),
		PromptAlternatives: int64(r.PromptAlternatives), Share: shareToPB(r.Share), AtEnd: r.AtEnd, PrefixScope: r.PrefixScope, Constraint: constraintToPB(r.Constraint),
	}
}

func sampleFromPB(p *backendpb.SampleRequest) (SampleRequest, error) {
	var u unpacker
	r := SampleRequest{
		ID: p.GetId(), Adapter: p.GetAdapter(), Version: p.GetVersion(), Prompt: u.ints("prompt", p.GetPrompt()),
		NumSamples: u.narrow("num_samples", p.GetNumSamples()), MaxTokens: u.narrow("max_tokens", p.GetMaxTokens()),
		Temperature: p.GetTemperature(), TopK: u.narrow("top_k", p.GetTopK()), TopP: p.GetTopP(), MinP: p.GetMinP(), Seed: p.GetSeed(),
		StopTokens: u.ints("stop_tokens", p.GetStopTokens()), MinTokens: u.narrow("min_tokens", p.GetMinTokens()),
		FrequencyPenalty: p.GetFrequencyPenalty(), PresencePenalty: p.GetPresencePenalty(), RepetitionPenalty: p.GetRepetitionPenalty(), LogitBias: p.GetLogitBias(),
		TopKSampledLogprobs: u.narrow("top_k_sampled_logprobs", p.GetTopKSampledLogprobs()), PromptLogprobs: p.GetPromptLogprobs(),
		PromptLogprobsLastN: u.narrow("prompt_logprobs_last_n", p.GetPromptLogprobsLastN()), TopKPromptLogprobs: u.narrow("top_k_prompt_logprobs", p.GetTopKPromptLogprobs()),
		TargetPromptTokens: u.ints("target_prompt_tokens", p.GetTargetPromptTokens()), TargetPromptK: u.narrow("target_prompt_k", p.GetTargetPromptK()),
		PromptAlternatives: u.narrow("prompt_alternatives", p.GetPromptAlternatives()), Share: shareFromPB(p.GetShare()), AtEnd: p.GetAtEnd(), PrefixScope: p.GetPrefixScope(), Constraint: u.constraint(p.GetConstraint()),
	}
	return r, u.err
}

func constraintToPB(c *Constraint) *backendpb.Constraint {
	if c == nil {
		return nil
	}
	out := &backendpb.Constraint{Grammar: c.Grammar, Excluded: packInts(c.Excluded)}
	if t := c.Think; t != nil {
		out.Think = &backendpb.ThinkRule{Open: packInts(t.Open), Close: packInts(t.Close), Forced: packInts(t.Forced), Budget: int64(t.Budget), Inside: t.Inside, Without: packInts(t.Without)}
	}
	return out
}

func (u *unpacker) constraint(p *backendpb.Constraint) *Constraint {
	if p == nil {
		return nil
	}
	out := &Constraint{Grammar: p.GetGrammar(), Excluded: u.ints("constraint.excluded", p.GetExcluded())}
	if t := p.GetThink(); t != nil {
		out.Think = &ThinkRule{
			Open: u.ints("constraint.think.open", t.GetOpen()), Close: u.ints("constraint.think.close", t.GetClose()), Forced: u.ints("constraint.think.forced", t.GetForced()),
			Budget: u.narrow("constraint.think.budget", t.GetBudget()), Inside: t.GetInside(), Without: u.ints("constraint.think.without", t.GetWithout()),
		}
	}
	return out
}

func vocabularyToPB(v *Vocabulary) *backendpb.SetVocabularyRequest {
	size := 0
	for _, t := range v.Tokens {
		size += len(t)
	}
	text, lengths, special := make([]byte, 0, size), make([]int32, len(v.Tokens)), make([]byte, (len(v.Special)+7)/8)
	for i, t := range v.Tokens {
		text, lengths[i] = append(text, t...), int32(len(t))
	}
	for i, s := range v.Special {
		if s {
			special[i/8] |= 1 << (i % 8)
		}
	}
	return &backendpb.SetVocabularyRequest{Text: text, Lengths: packInts(lengths), Special: special, Ends: packInts(v.Ends)}
}

func vocabularyFromPB(p *backendpb.SetVocabularyRequest) (Vocabulary, error) {
	var u unpacker
	text, lengths, special := p.GetText(), u.ints("vocabulary.tokens", p.GetLengths()), p.GetSpecial()
	v := Vocabulary{Tokens: make([][]byte, len(lengths)), Special: make([]bool, len(lengths)), Ends: u.ints("vocabulary.ends", p.GetEnds())}
	if u.err == nil && len(special) != (len(lengths)+7)/8 {
		u.err = Invalidf("vocabulary.special", "has %d bytes, %d tokens need %d", len(special), len(lengths), (len(lengths)+7)/8)
	}
	if u.err != nil {
		return Vocabulary{}, u.err
	}
	for i, n := range lengths {
		if n < 0 || int(n) > len(text) {
			return Vocabulary{}, Invalidf(fmt.Sprintf("vocabulary.tokens[%d]", i), "has a length of %d, and %d bytes are left", n, len(text))
		}
		v.Tokens[i], text = text[:n:n], text[n:]
		v.Special[i] = special[i/8]>>(i%8)&1 != 0
	}
	if len(text) > 0 {
		return Vocabulary{}, Invalidf("vocabulary.tokens", "leave %d bytes over", len(text))
	}
	return v, nil
}

func topToPB(t *TopLogprobs) *backendpb.TopLogprobs {
	if t.K == 0 {
		return nil
	}
	return &backendpb.TopLogprobs{K: int64(t.K), Ids: packInts(t.IDs), Logprobs: packFloats(t.Logprobs)}
}

func (u *unpacker) top(field string, p *backendpb.TopLogprobs) TopLogprobs {
	return TopLogprobs{K: u.narrow(field+".k", p.GetK()), IDs: u.ints(field+".ids", p.GetIds()), Logprobs: u.floats(field+".logprobs", p.GetLogprobs())}
}

var reasonsToPB = map[StopReason]backendpb.SequenceFinished_Reason{
	StopToken:     backendpb.SequenceFinished_REASON_STOP_TOKEN,
	StopLength:    backendpb.SequenceFinished_REASON_LENGTH,
	StopCancelled: backendpb.SequenceFinished_REASON_CANCELLED,
	StopComplete:  backendpb.SequenceFinished_REASON_COMPLETE,
}

func eventToPB(e *SampleEvent) *backendpb.SampleEvent {
	switch {
	case e.Prompt != nil:
		s := e.Prompt
		return &backendpb.SampleEvent{Event: &backendpb.SampleEvent_Prompt{Prompt: &backendpb.PromptScores{
			Version: s.Version, CachedTokens: int64(s.CachedTokens), Logprobs: packFloats(s.Logprobs), Top: topToPB(&s.Top),
			Targets: packFloats(s.Targets), AltTokens: packInts(s.AltTokens), AltLogprobs: packFloats(s.AltLogprobs),
		}}}
	case e.Tokens != nil:
		s := e.Tokens
		return &backendpb.SampleEvent{Event: &backendpb.SampleEvent_Tokens{Tokens: &backendpb.SampledTokens{
			Sequence: int64(s.Sequence), Tokens: packInts(s.Tokens), Logprobs: packFloats(s.Logprobs), Top: topToPB(&s.Top),
			ConstraintLogprobs: packFloats(s.ConstraintLogprobs),
		}}}
	case e.Finished != nil:
		return &backendpb.SampleEvent{Event: &backendpb.SampleEvent_Finished{Finished: &backendpb.SequenceFinished{
			Sequence: int64(e.Finished.Sequence), Reason: reasonsToPB[e.Finished.Reason],
		}}}
	}
	return &backendpb.SampleEvent{}
}

func eventFromPB(p *backendpb.SampleEvent) (SampleEvent, error) {
	var u unpacker
	switch e := p.GetEvent().(type) {
	case *backendpb.SampleEvent_Prompt:
		s := e.Prompt
		return SampleEvent{Prompt: &PromptScores{
			Version: s.GetVersion(), CachedTokens: u.narrow("cached_tokens", s.GetCachedTokens()), Logprobs: u.floats("logprobs", s.GetLogprobs()), Top: u.top("top", s.GetTop()),
			Targets: u.floats("targets", s.GetTargets()), AltTokens: u.ints("alt_tokens", s.GetAltTokens()), AltLogprobs: u.floats("alt_logprobs", s.GetAltLogprobs()),
		}}, u.err
	case *backendpb.SampleEvent_Tokens:
		s := e.Tokens
		return SampleEvent{Tokens: &SampledTokens{
			Sequence: u.narrow("sequence", s.GetSequence()), Tokens: u.ints("tokens", s.GetTokens()), Logprobs: u.floats("logprobs", s.GetLogprobs()), Top: u.top("top", s.GetTop()),
			ConstraintLogprobs: u.floats("constraint_logprobs", s.GetConstraintLogprobs()),
		}}, u.err
	case *backendpb.SampleEvent_Finished:
		for reason, code := range reasonsToPB {
			if code == e.Finished.GetReason() {
				return SampleEvent{Finished: &SequenceFinished{Sequence: u.narrow("sequence", e.Finished.GetSequence()), Reason: reason}}, u.err
			}
		}
		return SampleEvent{}, Invalidf("reason", "%d is not a reason for the end of a sequence", e.Finished.GetReason())
	}
	return SampleEvent{}, Invalidf("event", "is missing")
}

// Scopes cross as Scope + 1, so that a missing scope is not taken for weights.
func scopeToPB(s Scope) backendpb.Scope { return backendpb.Scope(s) + backendpb.Scope_SCOPE_WEIGHTS }

func scopeFromPB(p backendpb.Scope) Scope { return Scope(p - backendpb.Scope_SCOPE_WEIGHTS) }

func shareToPB(s Share) *backendpb.Share {
	if s == (Share{}) {
		return nil
	}
	return &backendpb.Share{Key: s.Key, Weight: s.Weight}
}

func shareFromPB(p *backendpb.Share) Share { return Share{Key: p.GetKey(), Weight: p.GetWeight()} }

func executionToPB(x Execution) *backendpb.Execution {
	if x == (Execution{}) {
		return nil
	}
	return &backendpb.Execution{Cycle: x.Cycle, BeginUnixNano: x.Begin.UnixNano(), EndUnixNano: x.End.UnixNano(), SamplingTurns: int64(x.SamplingTurns), SamplingNanos: int64(x.Sampling)}
}

func executionFromPB(p *backendpb.Execution) Execution {
	if p == nil {
		return Execution{}
	}
	return Execution{Cycle: p.GetCycle(), Begin: time.Unix(0, p.GetBeginUnixNano()), End: time.Unix(0, p.GetEndUnixNano()), SamplingTurns: int(p.GetSamplingTurns()), Sampling: time.Duration(p.GetSamplingNanos())}
}

package plugintest

import (
	"fmt"
	"math"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// invalidTraining sends one mistake after the other and sees each named, and the adapter as it was.
func (s *suite) invalidTraining() {
	nan, inf := math.NaN(), math.Inf(1)
	vocab := int32(s.model.VocabSize)
	r, d := s.create("a", allModules), s.datum(1, 6)
	r.train(1, d)
	before := r.forward(d).Logprobs[0]
	for _, c := range []struct {
		field  string
		change func(*plugins.ForwardBackwardRequest)
	}{
		{"data", func(q *plugins.ForwardBackwardRequest) { q.Data = nil }},
		{"loss", func(q *plugins.ForwardBackwardRequest) { q.Loss = "hinge" }},
		{"loss_config.beta", func(q *plugins.ForwardBackwardRequest) { q.LossConfig = map[string]float64{"beta": 1} }},
		{"data[0].tokens", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Tokens = nil }},
		{"data[0].tokens[2]", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Tokens[2] = vocab }},
		{"data[0].tokens[2]", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Tokens[2] = -1 }},
		{"data[0].tokens", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Tokens = make([]int32, s.model.MaxContextLength+1) }},
		{"data[0].target_tokens", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Targets = q.Data[0].Targets[:3] }},
		{"data[0].target_tokens[0]", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Targets[0] = math.MaxInt32 }},
		{"data[0].target_tokens", func(q *plugins.ForwardBackwardRequest) { q.Data[0].K = 0 }},
		{"data[0].target_tokens", func(q *plugins.ForwardBackwardRequest) { q.Data[0].K = math.MaxInt32 }},
		{"data[0].weights", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Weights = nil }},
		{"data[0].weights", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Weights = make([]float32, 7) }},
		{"data[0].weights[1]", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Weights[1] = float32(nan) }},
		{"data[0].weights[1]", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Weights[1] = float32(inf) }},
		{"data[0].advantages", func(q *plugins.ForwardBackwardRequest) { q.Data[0].Advantages = make([]float32, 6) }},
		{"data[1].sequence_ratio_mask", func(q *plugins.ForwardBackwardRequest) {
			q.Data = append(q.Data, s.datum(2, 3))
			q.Data[1].SequenceRatioMask = make([]float32, 3)
		}},
		{"data[0].logprobs", func(q *plugins.ForwardBackwardRequest) { q.Loss = "ppo" }},
		{"data[0].logprobs", func(q *plugins.ForwardBackwardRequest) { q.Loss, q.Data[0].Weights = "ppo", nil }},
		{"data[0].weights", func(q *plugins.ForwardBackwardRequest) { weigh(q, "ppo", []float32{1, 1, 1, 1, 1}) }},
		{"data[0].weights[1]", func(q *plugins.ForwardBackwardRequest) { weigh(q, "cispo", []float32{1, float32(nan), 1, 1, 1, 1}) }},
		{"data[0].weights[1]", func(q *plugins.ForwardBackwardRequest) { weigh(q, "ppo", []float32{1, -1, 1, 1, 1, 1}) }},
		{"loss_config.clip_low_threshold", func(q *plugins.ForwardBackwardRequest) {
			q.Loss, q.LossConfig = "ppo", map[string]float64{plugins.ClipLow: 2}
		}},
		{"loss_config.clip_high_threshold", func(q *plugins.ForwardBackwardRequest) {
			q.Loss, q.LossConfig = "cispo", map[string]float64{plugins.ClipHigh: nan}
		}},
		{"loss_config.beta", func(q *plugins.ForwardBackwardRequest) {
			q.Loss, q.LossConfig = "dro", map[string]float64{plugins.Beta: -1}
		}},
	} {
		req := plugins.ForwardBackwardRequest{Adapter: "a", Position: r.position(), Data: []plugins.Datum{s.datum(1, 6)}, Loss: "cross_entropy"}
		c.change(&req)
		_, err := s.b.ForwardBackward(s.Context(), req)
		s.wantInvalid("forward_backward", err, c.field)
	}
	_, _ = r.tryStep() // ends the window of failures
	for _, c := range []struct {
		field  string
		change func(*plugins.AdamParams)
	}{
		{"adam.learning_rate", func(a *plugins.AdamParams) { a.LearningRate = nan }},
		{"adam.learning_rate", func(a *plugins.AdamParams) { a.LearningRate = -1 }},
		{"adam.beta1", func(a *plugins.AdamParams) { a.Beta1 = 1 }},
		{"adam.beta2", func(a *plugins.AdamParams) { a.Beta2 = -0.5 }},
		{"adam.eps", func(a *plugins.AdamParams) { a.Eps = inf }},
		{"adam.weight_decay", func(a *plugins.AdamParams) { a.WeightDecay = -1 }},
		{"adam.grad_clip_norm", func(a *plugins.AdamParams) { a.GradClipNorm = nan }},
	} {
		req := plugins.OptimStepRequest{Adapter: "a", Position: r.position(), Adam: adam}
		c.change(&req.Adam)
		_, err := s.b.OptimStep(s.Context(), req)
		s.wantInvalid("optim_step", err, c.field)
	}
	s.sameBits("after all mistakes", r.forward(d).Logprobs[0], before)
	if res := r.step(); res.Step != 2 {
		s.Errorf("the next step is number %d, want 2", res.Step)
	}
	for _, c := range []struct {
		field  string
		change func(*plugins.CreateAdapterRequest)
	}{
		{"adapter", func(q *plugins.CreateAdapterRequest) { q.Adapter = "" }},
		{"adapter", func(q *plugins.CreateAdapterRequest) { q.Adapter = strings.Repeat("x", plugins.MaxIDBytes+1) }},
		{"config.rank", func(q *plugins.CreateAdapterRequest) { q.Config.Rank = 0 }},
		{"config.rank", func(q *plugins.CreateAdapterRequest) { q.Config.Rank = 3 }},
		{"config.rank", func(q *plugins.CreateAdapterRequest) { q.Config.Rank = s.model.MaxRank * 2 }},
		{"config", func(q *plugins.CreateAdapterRequest) { q.Config = plugins.AdapterConfig{Rank: 2} }},
		{"config.modules", func(q *plugins.CreateAdapterRequest) { q.Config.Modules = []string{"q_proj"} }},
	} {
		req := plugins.CreateAdapterRequest{Adapter: "new", Config: allModules}
		c.change(&req)
		_, err := s.b.CreateAdapter(s.Context(), req)
		s.wantInvalid("create", err, c.field)
	}
}

func (s *suite) invalidSamples() {
	nan := math.NaN()
	vocab := int32(s.model.VocabSize)
	s.create("a", allModules)
	for _, c := range []struct {
		field  string
		change func(*plugins.SampleRequest)
	}{
		{"id", func(q *plugins.SampleRequest) { q.ID = "" }},
		{"prefix_scope", func(q *plugins.SampleRequest) { q.PrefixScope = strings.Repeat("a", plugins.MaxIDBytes+1) }},
		{"version", func(q *plugins.SampleRequest) { q.Version = -2 }},
		{"version", func(q *plugins.SampleRequest) { q.Adapter, q.Version = "", 1 }},
		{"prompt", func(q *plugins.SampleRequest) { q.Prompt = nil }},
		{"prompt", func(q *plugins.SampleRequest) { q.Prompt = make([]int32, s.model.MaxContextLength+1) }},
		{"prompt[1]", func(q *plugins.SampleRequest) { q.Prompt[1] = vocab }},
		{"num_samples", func(q *plugins.SampleRequest) { q.NumSamples = 0 }},
		{"num_samples", func(q *plugins.SampleRequest) { q.NumSamples = plugins.MaxSamples + 1 }},
		{"max_tokens", func(q *plugins.SampleRequest) { q.MaxTokens = -1 }},
		{"max_tokens", func(q *plugins.SampleRequest) { q.MaxTokens = s.model.MaxContextLength }},
		{"min_tokens", func(q *plugins.SampleRequest) { q.MinTokens = 5 }},
		{"temperature", func(q *plugins.SampleRequest) { q.Temperature = -1 }},
		{"temperature", func(q *plugins.SampleRequest) { q.Temperature = nan }},
		{"top_p", func(q *plugins.SampleRequest) { q.TopP = 0 }},
		{"top_p", func(q *plugins.SampleRequest) { q.TopP = 1.5 }},
		{"min_p", func(q *plugins.SampleRequest) { q.MinP = -0.1 }},
		{"frequency_penalty", func(q *plugins.SampleRequest) { q.FrequencyPenalty = 3 }},
		{"presence_penalty", func(q *plugins.SampleRequest) { q.PresencePenalty = nan }},
		{"repetition_penalty", func(q *plugins.SampleRequest) { q.RepetitionPenalty = 0 }},
		{"stop_tokens[0]", func(q *plugins.SampleRequest) { q.StopTokens = []int32{vocab} }},
		{fmt.Sprintf("logit_bias[%d]", vocab), func(q *plugins.SampleRequest) { q.LogitBias = map[int32]float64{vocab: 1} }},
		{"logit_bias[1]", func(q *plugins.SampleRequest) { q.LogitBias = map[int32]float64{1: nan} }},
		{"top_k_sampled_logprobs", func(q *plugins.SampleRequest) { q.TopKSampledLogprobs = int(vocab) + 1 }},
		{"top_k_prompt_logprobs", func(q *plugins.SampleRequest) { q.TopKPromptLogprobs = -1 }},
		{"prompt_logprobs_last_n", func(q *plugins.SampleRequest) { q.PromptLogprobsLastN = -1 }},
		{"target_prompt_tokens", func(q *plugins.SampleRequest) { q.TargetPromptK = 1 }},
		{"target_prompt_tokens[0]", func(q *plugins.SampleRequest) { q.TargetPromptK, q.TargetPromptTokens = 1, []int32{-2, 0, 0, 0, 0} }},
		{"target_prompt_k", func(q *plugins.SampleRequest) { q.TargetPromptK = math.MaxInt32 }},
		{"prompt_alternatives", func(q *plugins.SampleRequest) { q.PromptAlternatives = math.MaxInt32 }},
	} {
		req := s.request("a", 1, 4)
		c.change(&req)
		_, err := s.trySample(req, nil)
		s.wantInvalid("sample", err, c.field)
	}
	_, err := s.trySample(s.request("nobody", 1, 1), nil)
	s.wantKind("an adapter that does not exist", err, plugins.KindNotFound)
	for _, req := range []plugins.PinRequest{{Adapter: "a", Name: ""}, {Adapter: "a", Name: strings.Repeat("x", plugins.MaxIDBytes+1)}} {
		_, err := s.b.Pin(s.Context(), req)
		s.wantInvalid("pin", err, "name")
	}
	s.sample(s.request("a", 1, 4))
}

// weigh makes a request one with a policy loss and weights; its datum has six tokens.
func weigh(q *plugins.ForwardBackwardRequest, loss string, weights []float32) {
	q.Loss = loss
	q.Data[0].Logprobs, q.Data[0].Advantages, q.Data[0].Weights = make([]float32, 6), make([]float32, 6), weights
}

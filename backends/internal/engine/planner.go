package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// Fields of a plugins.PlanRequest in errors: the options of the command.
const (
	fieldDevice  = "device"
	fieldDevices = "devices"
	fieldMemory  = "memory"
	fieldRank    = "rank"
	fieldContext = "context"
)

// Bounds of a request, and of what a model may ask for by itself: a pass that is measured takes memory of the host for each token.
const (
	mostMemory     = 1 << 46 // more than any machine has
	longestPlanned = 1 << 20 // tokens
)

// planner makes the plans of one request, by what Load does: over devices that compute nothing, from the headers of the model's files.
type planner struct {
	options  Options
	request  plugins.PlanRequest
	settings map[string]json.RawMessage // of the section, but for where the model is put
	own      map[string]json.RawMessage // those: where the section puts it
	gpus     bool
	devices  int
	measured map[string]map[measurement]model.Memory // what passes take does not depend on how much there is, nor on how many copies
}

// PlanMemory implements plugins.Planner.
func (e *Engine) PlanMemory(ctx context.Context, req plugins.PlanRequest) (plugins.Plan, error) {
	f, err := newPlanner(e.options, req)
	if err != nil {
		return plugins.Plan{}, err
	}
	return f.plan(ctx)
}

func newPlanner(o Options, req plugins.PlanRequest) (*planner, error) {
	f := &planner{options: o, request: req, settings: map[string]json.RawMessage{}, own: map[string]json.RawMessage{}, measured: map[string]map[measurement]model.Memory{}}
	config, err := ParseConfig(o.Plugin, emptied(req.Config, o.Plugin))
	if err != nil {
		return nil, err
	}
	if req.Rank == 0 {
		f.request.Rank = referenceRank
	}
	switch {
	case req.Rank < 0 || req.Rank > lora.MaxRank:
		return nil, plugins.Invalidf(fieldRank, "is %d; want 1 to %d", req.Rank, lora.MaxRank)
	case req.Devices < 0 || req.Devices > maxRanks:
		return nil, plugins.Invalidf(fieldDevices, "is %d; want 1 to %d", req.Devices, maxRanks)
	case req.Memory < 0 || req.Memory > mostMemory:
		return nil, plugins.Invalidf(fieldMemory, "is %d bytes; want at most %d GiB", req.Memory, mostMemory>>30)
	case req.Context < 0 || req.Context > longestPlanned:
		return nil, plugins.Invalidf(fieldContext, "is %d; want 1 to %d, which plans are made for", req.Context, longestPlanned)
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(req.Config, &all); err != nil && len(req.Config) > 0 {
		return nil, plugins.Invalidf("backend", "is not a JSON object: %v", err)
	}
	placed := placementSettings(pluginDataParallel)
	for k, v := range all {
		switch {
		case k == "plugin":
		case k == "device" || placed[k] != nil && k != "cuda_libraries":
			f.own[k] = v
		default:
			f.settings[k] = v
		}
	}
	if config.MaxContextLength > longestPlanned {
		return nil, plugins.Invalidf("backend.max_context_length", "is %d; plans are made for at most %d", config.MaxContextLength, longestPlanned)
	}
	f.devices = max(1, config.ranks())
	for _, group := range config.Training {
		f.gpus = f.gpus || isCUDA(group[0])
	}
	switch req.Device {
	case "":
	case "cpu", "cuda":
		f.gpus = req.Device == "cuda"
	default:
		return nil, plugins.Invalidf(fieldDevice, "is %q; want cpu or cuda", req.Device)
	}
	if req.Devices > 0 {
		f.devices = req.Devices
	}
	if req.Context > 0 {
		f.settings["max_context_length"] = json.RawMessage(fmt.Sprint(req.Context))
	}
	if req.DType != "" {
		name, err := json.Marshal(req.DType)
		if err != nil {
			return nil, internal("plan the memory", err)
		}
		f.settings["dtype"] = name
	}
	if req.Memory > 0 {
		delete(f.settings, "memory_mib")
	} else if _, set := f.settings["memory_mib"]; f.gpus && !set {
		return nil, plugins.Invalidf(fieldMemory, "is not known: say how much each GPU has, such as 80GiB")
	}
	return f, nil
}

// emptied is a section that a plugin takes which needs devices to be named, though none is.
func emptied(section json.RawMessage, plugin string) json.RawMessage {
	var values map[string]json.RawMessage
	if plugin == pluginSingle || json.Unmarshal(section, &values) != nil && len(section) > 0 || values["devices"] != nil {
		return section
	}
	values = maps.Clone(values)
	if values == nil {
		values = map[string]json.RawMessage{}
	}
	values["devices"] = json.RawMessage(`["cpu"]`)
	raw, err := json.Marshal(values)
	if err != nil {
		return section
	}
	return raw
}

// where is a way to put the model on devices.
type where struct {
	name, plugin string
	keys         map[string]any // of the section
}

// load makes what Load would up to the plan, for a machine with so much memory on each device, 0 for what the request says and unlimited for any. The caller closes it.
func (f *planner) load(ctx context.Context, w where, memory int64) (l *loaded, err error) {
	section := maps.Clone(f.settings)
	for k, v := range w.keys {
		raw, err := json.Marshal(v)
		if err != nil {
			return nil, internal("plan the memory", err)
		}
		section[k] = raw
	}
	raw, err := json.Marshal(section)
	if err != nil {
		return nil, internal("plan the memory", err)
	}
	config, err := ParseConfig(w.plugin, raw)
	if err != nil {
		return nil, err
	}
	e := &Engine{options: f.options}
	e.options.Plugin, e.options.OpenDevice = w.plugin, plannedDevice
	device, err := e.options.OpenDevice(config)
	if err != nil {
		return nil, internal("plan the memory", err)
	}
	l = &loaded{config: config, device: device, homes: homes{devices: []tensor.Device{device}}, spills: true, planned: true}
	sharers := 1
	if config.ShardBase {
		sharers = len(config.Training)
	}
	key := fmt.Sprint(len(config.Training[0]), sharers, config.DType, config.MaxContextLength)
	if f.measured[key] == nil {
		f.measured[key] = map[measurement]model.Memory{}
	}
	l.measured = f.measured[key]
	l.files = modelFiles{f.request.ModelDir, f.options.Registry, model.LoadOptions{DType: config.DType, FP8: config.fp8(device), MaxContext: config.MaxContextLength, Sizes: true}}
	if err := e.arrange(ctx, l, func() (memoryLimits, error) { return f.limits(l, memory), nil }); err != nil {
		return nil, errors.Join(err, f.close(l))
	}
	return l, nil
}

// close gives back what load has made.
func (f *planner) close(l *loaded) error { return errors.Join(l.close(), l.homes.close()) }

// limits are those of a machine: nine tenths of what it has, as memoryLimit takes of what is free.
func (f *planner) limits(l *loaded, memory int64) memoryLimits {
	if memory == 0 {
		memory = f.request.Memory
	}
	if memory == 0 {
		return memoryLimit(l.config, l.homes.devices)
	}
	m := memoryLimits{bytes: make([]int64, len(l.homes.devices)), source: "nine tenths of " + mebibytes(memory)}
	limit := memory - memory/10
	if memory == unlimited {
		m.source, limit = "none", unlimited
	}
	for i := range m.bytes {
		m.bytes[i] = limit
	}
	if !l.homes.ownMemory() {
		return m
	}
	if m.stated = m.bytes; memory == unlimited { // passes are cut as where there is what the request says
		m.stated = f.limits(l, 0).bytes
	}
	return m
}

// device is the name of device i.
func (f *planner) device(i int) string {
	if f.gpus {
		return fmt.Sprintf("cuda:%d", i)
	}
	return "cpu"
}

// names are those of devices [from, to).
func (f *planner) names(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, f.device(i))
	}
	return all
}

// ways are those to put the model on n devices.
func (f *planner) ways(n int) []where {
	all := []where{{"single", pluginSingle, map[string]any{"device": f.device(0)}}}
	if n == 1 {
		return all
	}
	names := f.names(0, n)
	all = append(all, where{fmt.Sprint("dataparallel ", n), pluginDataParallel, map[string]any{"devices": names}}, f.cut(n), f.shared(n))
	train := (n + 1) / 2
	split := fmt.Sprintf("split %d + %d", train, n-train)
	keys := map[string]any{"devices": names[:train], "sample_devices": names[train:]}
	all = append(all, where{split + ", copies", pluginDataParallel, keys})
	if n > 2 {
		all = append(all, where{split + ", cut", pluginTensorParallel, keys})
	}
	return all
}

// cut is the model cut over n devices, and shared one that is shared out over them.
func (f *planner) cut(n int) where {
	return where{fmt.Sprint("tensorparallel ", n), pluginTensorParallel, map[string]any{"devices": f.names(0, n)}}
}

func (f *planner) shared(n int) where {
	return where{fmt.Sprint("shard_base ", n), pluginDataParallel, map[string]any{"devices": f.names(0, n), shardBase: true}}
}

// configured is where the section puts the model, if it says so and the request does not.
func (f *planner) configured() []where {
	if len(f.own) == 0 || f.request.Device != "" || f.request.Devices != 0 || string(f.own["device"]) == `"auto"` {
		return nil
	}
	keys := map[string]any{}
	for k, v := range f.own {
		keys[k] = v
	}
	return []where{{"as configured", f.options.Plugin, keys}}
}

// plan answers the request.
func (f *planner) plan(ctx context.Context) (plugins.Plan, error) {
	p := plugins.Plan{Passes: []plugins.PlannedPass{}, Placements: []plugins.PlannedPlacement{}, Advice: []string{}, Notes: []string{}}
	found, err := model.FindWeights(f.request.ModelDir, f.options.Registry)
	if err != nil {
		return p, plugins.Invalidf("model_dir", "%v", err)
	}
	if n := found.MaxPositions; n > longestPlanned && f.settings["max_context_length"] == nil {
		return p, plugins.Invalidf(fieldContext, "is not set, and the model's own is %d: plans are made for at most %d", n, longestPlanned)
	}
	if err := f.sizes(ctx, &p); err != nil {
		return p, err
	}
	p.Model.Source = string(found.Weights)
	p.Machine = f.machine()
	for _, w := range slices.Concat(f.configured(), f.ways(f.devices)) {
		placed, err := f.place(ctx, w)
		if err != nil {
			return p, err
		}
		p.Placements = append(p.Placements, placed)
	}
	p.Advice = append(p.Advice, f.advice(ctx, &p)...)
	return p, ctx.Err()
}

// machine describes the devices.
func (f *planner) machine() plugins.PlannedMachine {
	m := plugins.PlannedMachine{Device: "cpu", Devices: f.devices, MemoryBytes: f.request.Memory, Source: "as given"}
	if f.gpus {
		m.Device = "cuda"
	}
	if m.MemoryBytes > 0 {
		return m
	}
	if _, set := f.settings["memory_mib"]; set {
		m.Source = memoryKey
		return m
	}
	m.Source = "what is free on this machine"
	if free, ok := availableMemory(machine); ok {
		m.MemoryBytes = free
	}
	return m
}

// sizes are those of the model as a whole, on one device of the kind, whatever there is.
func (f *planner) sizes(ctx context.Context, p *plugins.Plan) (err error) {
	l, err := f.load(ctx, f.ways(1)[0], unlimited)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close(l)) }()
	m := l.model
	p.Model = plugins.PlannedModel{
		Architecture: m.Config.Architecture, Parameters: m.Parameters, Layers: m.Config.Layers, HiddenSize: m.Config.HiddenSize, VocabSize: m.Config.VocabSize, MaxContextLength: m.Config.MaxPositionEmbeddings,
		DType: m.DType.String(), WeightBytes: l.plan.weights, TokenBytes: pageBytes(m) / tensor.PageSize, StateBytes: m.StateBytes(),
	}
	p.Notes = append(p.Notes, m.Notes...)
	if m.FP8 {
		p.Notes = append(p.Notes, "The weights that the files have in FP8 are kept so; backend.weights: bf16 has them expanded, with equal results.")
	}
	layout, err := l.referenceLayout(f.request.Rank)
	if err != nil {
		return err
	}
	adapters, err := newResidency(l.device, l.weightShape(), "", 0, l.plan.adapters, nil)
	if err != nil {
		return err
	}
	weights, err := lora.NewWeights(l.device, layout, m.DType, l.places...)
	if err != nil {
		return internal("plan the memory", err)
	}
	adapters.weights[shapeKey{layout.Rank, layout.Size}] = byHome{weights.Bytes()} // as is known of an adapter that has been made
	parameters := lora.ParameterBytes(layout)
	p.Adapter = plugins.PlannedAdapter{
		Rank: layout.Rank, Parameters: int64(layout.Size), WeightBytes: adapters.weightBytes(layout), GradientBytes: parameters, MomentBytes: 2 * parameters, StepBytes: adapters.stepBytes(layout),
	}
	lengths := []int{mostTokens, 1 << 15, m.MaxContext}
	slices.Sort(lengths)
	for _, n := range slices.Compact(lengths) {
		if n > max(m.MaxContext, mostTokens) {
			continue
		}
		pass := plugins.PlannedPass{Tokens: n}
		if pass.KeptBytes, err = l.datumBytes(n, layout.Rank, false); err != nil {
			return err
		}
		if pass.RecomputedBytes, err = l.datumBytes(n, layout.Rank, true); err != nil {
			return err
		}
		p.Passes = append(p.Passes, pass)
	}
	return nil
}

// reason is what an error says of a placement.
func reason(err error) string {
	var e *plugins.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	message := strings.TrimPrefix(e.Message, "load model: ")
	if key, ok := strings.CutPrefix(e.Field, "backend."); ok && e.Field != memoryKey && e.Field != "backend.devices" {
		return key + ": " + message
	}
	return message
}

// place plans one placement. Its error is one that no placement would do without.
func (f *planner) place(ctx context.Context, w where) (plugins.PlannedPlacement, error) {
	keys, err := json.Marshal(w.keys)
	if err != nil {
		return plugins.PlannedPlacement{}, internal("plan the memory", err)
	}
	out := plugins.PlannedPlacement{Name: w.name, Plugin: w.plugin, Config: keys, Fits: plugins.FitsNothing, Devices: []plugins.PlannedDevice{}}
	l, err := f.load(ctx, w, 0)
	if ctx.Err() != nil {
		return out, plugins.Cancelled(ctx.Err())
	}
	if err != nil {
		out.Reason = reason(err)
		return out, nil
	}
	err = f.describe(l, &out)
	return out, errors.Join(err, f.close(l))
}

// describe fills a placement in, from the plan that was made for it.
func (f *planner) describe(l *loaded, out *plugins.PlannedPlacement) error {
	p := &l.plan
	layout, err := l.referenceLayout(f.request.Rank)
	if err != nil {
		return err
	}
	out.Fits, out.Context, out.CacheTokens, out.Sequences, out.BatchTokens = plugins.FitsSampling, p.context, p.positions, l.config.MaxBatch, p.batchTokens
	out.TrainingBytes, out.AdapterBytes = p.training, p.adapters
	for i := range p.devices {
		d := &p.devices[i]
		one := plugins.PlannedDevice{Name: d.name, LimitBytes: d.limit, WeightBytes: d.weights, SamplerBytes: d.sampling, CacheBytes: d.cache, OtherBytes: d.recorded + d.exchange, LeftBytes: d.rest()}
		if d.limit >= unlimited {
			one.LimitBytes, one.LeftBytes = 0, 0
		}
		out.Devices = append(out.Devices, one)
	}
	kept, err := l.batchBytes(p.batchTokens, false)
	if err != nil {
		return err
	}
	out.Recompute = p.recompute == RecomputeOn || p.recompute == RecomputeAuto && kept > p.training/int64(len(l.training))
	if out.KeptDatum, err = l.longestDatum(p, layout, false); err != nil {
		return err
	}
	if out.LongestDatum = out.KeptDatum; p.recompute != RecomputeOff {
		if out.LongestDatum, err = l.longestDatum(p, layout, true); err != nil {
			return err
		}
	}
	out.Adapters = p.adapters / l.withOptimizer(layout).total()
	if out.Reason, err = l.untrainable(p, layout); err == nil && out.Reason == "" {
		out.Fits = plugins.FitsTraining
	}
	return err
}

// untrainable says why no adapter like that of a layout can be trained by a plan; "" where one can.
func (l *loaded) untrainable(p *memoryPlan, layout *lora.Layout) (string, error) {
	adapters, err := newResidency(l.device, l.weightShape(), "", 0, p.adapters, nil)
	if err != nil {
		return "", err
	}
	if step := adapters.stepBytes(layout); step > p.adapters {
		return fmt.Sprintf("a step of an adapter of rank %d takes %s, and adapters can have %s", layout.Rank, mebibytes(step), mebibytes(p.adapters)), nil
	}
	need, err := l.datumNeed(tensor.PageSize, layout.Rank, p.recompute != RecomputeOff)
	if err != nil {
		return "", err
	}
	most, err := l.mostForDatum(p, layout)
	if err != nil || need <= most {
		return "", err
	}
	return fmt.Sprintf("beside an adapter of rank %d there is no room for a training pass", layout.Rank), nil
}

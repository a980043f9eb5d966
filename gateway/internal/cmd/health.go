package cmd

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
)

// health puts the answer of /healthz together.
type health struct {
	version string
	models  []config.Model
	opened  func() // is called when the APIs answer; nil: nobody wants to know

	mu        sync.Mutex
	records   store.Store    // nil until it is open
	trouble   *store.Trouble // why it could not be opened yet
	backends  *fleet.Fleet
	rebuilds  func(model string) runs.Rebuilding // nil until the core is open
	pools     func() []runs.BackendInfo          // likewise
	downloads map[int]float64
	open      bool           // the APIs answer
	standby   *store.Waiting // what is waited for by a gateway whose turn it is not, or nil
}

// setStandby tells whether this gateway waits for its turn: the zero Waiting ends that.
func (h *health) setStandby(w store.Waiting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.standby = &w; w == (store.Waiting{}) {
		h.standby = nil
	}
}

// starting says why the APIs do not answer yet.
func (h *health) starting() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.standby != nil && h.standby.Holder != "":
		return "this gateway is a standby: another one serves"
	case h.standby != nil:
		return "this gateway is a standby that cannot reach its database, see /healthz"
	}
	return "the server is starting, see /healthz"
}

// setStore tells that the store is open, or why it is not.
func (h *health) setStore(s store.Store, trouble *store.Trouble) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records, h.trouble = s, trouble
}

// storage tells how the store stands. mu is held.
func (h *health) storage() server.Storage {
	trouble := h.trouble
	if h.records != nil {
		trouble = store.TroubleOf(h.records.Err())
	}
	switch {
	case h.standby != nil && h.standby.Err != nil:
		return server.Storage{State: string(store.Failing), Reason: h.standby.Err.Error()}
	case h.standby != nil:
		return server.Storage{State: standby, Reason: "the lease of the database is of " + h.standby.Holder}
	case trouble != nil:
		return server.Storage{State: string(trouble.State), Reason: trouble.Error()}
	case h.records == nil:
		return server.Storage{State: "starting"}
	}
	if h.backends != nil {
		for _, s := range h.backends.States() {
			if why := s.Status.NoRoom; why != "" {
				return server.Storage{State: string(store.Full), Reason: "the backend of " + s.Name + " has work that waits for the disk: " + why}
			}
		}
	}
	if damage := slices.DeleteFunc(h.records.Damage(), func(f store.Finding) bool { return f.Mended }); len(damage) > 0 {
		return server.Storage{State: damaged, Reason: fmt.Sprintf("%d things that the store keeps are damaged; the log names them", len(damage))}
	}
	return server.Storage{State: "ok"}
}

func (h *health) setFleet(f *fleet.Fleet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.backends = f
}

// setRuns tells who knows of the runs that are rebuilt, and of where they are.
func (h *health) setRuns(rebuilds func(model string) runs.Rebuilding, pools func() []runs.BackendInfo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rebuilds, h.pools = rebuilds, pools
}

func (h *health) setDownload(model int, done, total int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.downloads == nil {
		h.downloads = map[int]float64{}
	}
	if total > 0 {
		h.downloads[model] = float64(done) / float64(total)
	}
}

// standby is the state of a gateway that waits for its turn, and of what it stores.
const standby = "standby"

// damaged is the state of a store that serves all but what of it is damaged.
const damaged = "damaged"

// setOpen notes that the APIs answer.
func (h *health) setOpen() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open = true; h.opened != nil {
		h.opened()
	}
}

// get tells how everything stands: "ok" when the APIs answer, the store takes work and all models are ready, "starting" while any of it comes up for the first time, else "degraded".
func (h *health) get() server.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := server.Health{Status: "ok", Version: h.version, Storage: h.storage(), Open: h.open}
	switch {
	case out.Storage.State == damaged:
		out.Status = damaged
	case out.Storage.Reason != "":
		out.Status = "degraded"
	}
	if out.Storage.State == standby {
		out.Status = standby
	}
	if h.backends == nil {
		if out.Status == "ok" || out.Status == damaged {
			out.Status = "starting"
		}
		for i, m := range h.models {
			state := server.Model{Name: m.Name, State: "starting"}
			if progress, ok := h.downloads[i]; ok && progress < 1 {
				state.State, state.Progress = "downloading", progress
			}
			out.Models = append(out.Models, state)
		}
		return out
	}
	if !h.open && (out.Status == "ok" || out.Status == damaged) {
		out.Status = "starting"
	}
	var pools []runs.BackendInfo // asked for once, and only if there are any
	for states := h.backends.States(); len(states) > 0; {
		n := 1
		for n < len(states) && states[n].Serves == states[0].Serves {
			n++
		}
		if n > 1 && pools == nil && h.pools != nil {
			pools = h.pools()
		}
		m, status := h.model(states[:n], pools)
		states = states[n:]
		switch {
		case status == "degraded":
			out.Status = status
		case status == "starting" && (out.Status == "ok" || out.Status == damaged):
			out.Status = status
		}
		out.Models = append(out.Models, m)
	}
	return out
}

// model tells how a model stands with its backends, and what that is for the server: "ok", "starting" or "degraded". One backend that is well is enough for it. mu is held.
func (h *health) model(states []fleet.State, pools []runs.BackendInfo) (server.Model, string) {
	m, status := backendHealth(states[0])
	for _, s := range states[1:] {
		other, its := backendHealth(s)
		if status != "ok" && (its == "ok" || its == "starting" && status == "degraded") {
			m, status = other, its
		}
	}
	m.Name = states[0].Serves
	if len(states) > 1 {
		m.Restarts = 0
		for _, s := range states {
			b := poolHealth(s, pools)
			m.Restarts += b.Restarts
			m.Backends = append(m.Backends, b)
		}
	}
	if status == "ok" && h.rebuilds != nil {
		if b := h.rebuilds(m.Name); b.Runs > 0 {
			m.State, m.Reason, m.Rebuilding = "rebuilding", b.Trouble, &server.Rebuilding{Runs: b.Runs, Replayed: b.Replayed, ToReplay: b.ToReplay}
		}
	}
	return m, status
}

// backendHealth tells how a backend stands, in the form of a model that has no other.
func backendHealth(s fleet.State) (m server.Model, status string) {
	m = server.Model{Name: s.Name, State: string(s.Phase), Restarts: s.Restarts, LastLoss: s.Loss, Device: s.Model.Device, DType: s.Model.DType, Arithmetic: s.Model.Arithmetic, Products: s.Model.Products}
	for _, share := range s.Model.Memory {
		m.Memory = append(m.Memory, server.Memory{Name: share.Name, Bytes: share.Bytes, Detail: share.Detail})
	}
	if s.Phase != supervisor.Ready {
		m.Reason = s.Reason
		if s.Phase == supervisor.Failed && s.StderrTail != "" {
			m.Reason += "; its last output: " + s.StderrTail
		}
	}
	if s.Phase == supervisor.Loading && s.Progress.Total > 0 {
		m.Progress = float64(s.Progress.Done) / float64(s.Progress.Total)
	}
	switch {
	case s.Stalled != "":
		m.State, m.Reason = "hanging", s.Stalled
		return m, "degraded"
	case s.Phase == supervisor.Ready:
		return m, "ok"
	case s.Restarts == 0 && (s.Phase == supervisor.Starting || s.Phase == supervisor.Loading):
		return m, "starting"
	}
	return m, "degraded"
}

// poolHealth tells how one of a model's backends stands, with what the core knows of it.
func poolHealth(s fleet.State, pools []runs.BackendInfo) server.Backend {
	m, _ := backendHealth(s)
	b := server.Backend{
		Name: s.Name, State: m.State, Progress: m.Progress, Reason: m.Reason, Restarts: m.Restarts, LastLoss: m.LastLoss, Device: m.Device, DType: m.DType, Arithmetic: m.Arithmetic,
	}
	if i := slices.IndexFunc(pools, func(p runs.BackendInfo) bool { return p.Name == s.Name }); i >= 0 {
		p := pools[i]
		if p.Odd {
			b.Reason = "it has other weights than the first backend of its model, and gets no work"
		}
		b.Drained, b.Runs, b.ActiveRuns, b.Leaving, b.Samples = p.Drained, p.Runs, p.Active, p.Leaving, p.Samples
	}
	return b
}

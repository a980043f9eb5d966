package plugins

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
)

// hosted is a backend that one gateway after the other uses: each finds it as if its process had just begun, but for the model, which stays in memory. It stands on the contract alone: adapters are deleted, which
// ends what was queued and sampled on them, and the backend has to tell by its Status that nothing is left. Paths of checkpoints are names here, of directories in files.
type hosted struct {
	Backend
	files    *hostedFiles
	exit     func(error)   // ends the process; the platform starts another
	patience time.Duration // see ListenOptions

	mu         sync.Mutex
	bootID     string
	adapters   map[string]bool // that there may be
	asked      bool            // to load, under the present lease
	loading    bool            // in this process
	loaded     *hostedModel
	background int           // loads and saves that run, with or without a caller
	quiet      chan struct{} // closed when background is 0
}

// anew is the reason of an end that no work is to blame for: only another process can load.
type anew struct{ error }

// hostedModel is the model in memory.
type hostedModel struct {
	request LoadRequest // with the last configuration that was taken
	model   ModelInfo
}

func newHosted(b Backend, files *hostedFiles, exit func(error), patience time.Duration) *hosted {
	h := &hosted{Backend: b, files: files, exit: exit, patience: patience, adapters: map[string]bool{}, bootID: randomID(), quiet: make(chan struct{})}
	close(h.quiet)
	return h
}

func randomID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	return hex.EncodeToString(id)
}

func (h *hosted) boot() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bootID
}

// Info implements Backend. The boot id is another one for each lease.
func (h *hosted) Info(ctx context.Context) (Info, error) {
	i, err := h.Backend.Info(ctx)
	i.BootID = h.boot()
	return i, err
}

// Status implements Backend.
func (h *hosted) Status(ctx context.Context, report func(Status)) error {
	boot := h.boot()
	return h.Backend.Status(ctx, func(s Status) {
		s.BootID = boot
		report(s)
	})
}

// Load implements Backend. Directories are this machine's: the model's that the lease names, and the scratch space. A model that is in memory is not read again; what has changed in its configuration is configured. Where that
// cannot be, or another model is wanted, the process ends, so that the next one can load it.
func (h *hosted) Load(ctx context.Context, req LoadRequest, progress func(LoadProgress)) (ModelInfo, error) {
	if one := leaseOf(ctx); one != nil {
		req.ModelDir = one.modelDir
	}
	req.Scratch = h.files.scratch
	h.mu.Lock()
	known, asked := h.loaded, h.asked
	h.asked, h.loading = true, true
	h.mu.Unlock()
	switch {
	case asked:
		return ModelInfo{}, Invalidf("", "load was already called under this lease")
	case known != nil:
		return h.loadAgain(ctx, req, known)
	}
	m, err := h.Backend.Load(ctx, req, progress)
	if err == nil {
		h.mu.Lock()
		h.loaded = &hostedModel{req, m}
		h.mu.Unlock()
	}
	return m, err
}

func (h *hosted) loadAgain(ctx context.Context, req LoadRequest, known *hostedModel) (ModelInfo, error) {
	why := ""
	switch was := known.request; {
	case req.ModelDir != was.ModelDir || req.Name != was.Name || req.Reserve != was.Reserve:
		why = fmt.Sprintf("another model is wanted, or other room on the disk: %s from %s, reserve %d, and not %s from %s, reserve %d", req.Name, req.ModelDir, req.Reserve, was.Name, was.ModelDir, was.Reserve)
	case !bytes.Equal(req.Config, was.Config):
		if _, err := h.Configure(ctx, ConfigureRequest{Config: req.Config}); err != nil {
			why = fmt.Sprintf("the configuration is another one: %v", err)
		}
	}
	if why == "" {
		return known.model, nil
	}
	err := unavailablef("the process ends itself, so that the next one loads anew: %s", why)
	h.exit(anew{err})
	return ModelInfo{}, err
}

// Configure implements Backend.
func (h *hosted) Configure(ctx context.Context, req ConfigureRequest) (ConfigureResult, error) {
	res, err := h.Backend.Configure(ctx, req)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.loaded != nil {
			h.loaded.request.Config = slices.Clone(req.Config)
		}
	}
	return res, err
}

// CreateAdapter implements Backend.
func (h *hosted) CreateAdapter(ctx context.Context, req CreateAdapterRequest) (AdapterInfo, error) {
	h.note(req.Adapter)
	return h.Backend.CreateAdapter(ctx, req)
}

// DeleteAdapter implements Backend.
func (h *hosted) DeleteAdapter(ctx context.Context, adapter string) error {
	err := h.Backend.DeleteAdapter(ctx, adapter)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.adapters, adapter)
	}
	return err
}

// note remembers an adapter that may come into being.
func (h *hosted) note(adapter string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adapters[adapter] = true
}

// SaveAdapter implements Backend. req.Path is a name, under which GetFiles fetches what was written.
func (h *hosted) SaveAdapter(ctx context.Context, req SaveAdapterRequest) (SaveAdapterResult, error) {
	name := req.Path
	path, err := h.files.saving(name)
	if err != nil {
		return SaveAdapterResult{}, err
	}
	req.Path = path
	return detached(ctx, h, func(ctx context.Context) (SaveAdapterResult, error) {
		res, err := h.Backend.SaveAdapter(ctx, req)
		return res, renamed(err, path, name)
	})
}

// LoadAdapter implements Backend. req.Path is the name of a directory that PutFiles has brought; one that it has not is absent to the backend.
func (h *hosted) LoadAdapter(ctx context.Context, req LoadAdapterRequest) (AdapterInfo, error) {
	name := req.Path
	path, release, err := h.files.loading(name)
	if err != nil {
		return AdapterInfo{}, err
	}
	req.Path = path
	if req.Position == 0 {
		h.note(req.Adapter)
	}
	return detached(ctx, h, func(ctx context.Context) (AdapterInfo, error) {
		defer release()
		info, err := h.Backend.LoadAdapter(ctx, req)
		return info, renamed(err, path, name)
	})
}

// detached runs a call that uses a directory to its own end, also when its caller gives up before, so that it is known when the directory is free.
func detached[T any](ctx context.Context, h *hosted, call func(context.Context) (T, error)) (T, error) {
	h.mu.Lock()
	if h.background == 0 {
		h.quiet = make(chan struct{})
	}
	h.background++
	h.mu.Unlock()
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.background--; h.background == 0 {
				close(h.quiet)
			}
		}()
		value, err := call(context.WithoutCancel(ctx))
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, Cancelled(ctx.Err())
	}
}

// renamed has an error name a directory as the gateway does.
func renamed(err error, path, name string) error {
	var e *Error
	if !errors.As(err, &e) || !strings.Contains(e.Message, path) {
		return err
	}
	return &Error{Kind: e.Kind, Field: e.Field, Message: strings.ReplaceAll(e.Message, path, name)}
}

// renew makes everything new after a lease. The error, with which the process ends, says what could not be.
func (h *hosted) renew(over *lease) error {
	ctx, cancel := context.WithTimeout(context.Background(), h.patience)
	defer cancel()
	err := h.forget(ctx, over)
	if err != nil {
		err = fmt.Errorf("after the end of lease %d: %w", over.Number, err)
		h.exit(err)
	}
	return err
}

func (h *hosted) forget(ctx context.Context, over *lease) error {
	select {
	case <-over.idle:
	case <-ctx.Done():
		return fmt.Errorf("its calls have not ended within %v", h.patience)
	}
	h.mu.Lock()
	loading, loaded, quiet := h.loading, h.loaded, h.quiet
	h.mu.Unlock()
	if loading && loaded == nil {
		return anew{errors.New("its load of the model has not succeeded, and a process loads once")}
	}
	if loaded != nil {
		if err := h.deleteAll(ctx); err != nil {
			return err
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			return fmt.Errorf("its loads and saves have not ended within %v", h.patience)
		}
		if err := h.deleteAll(ctx); err != nil { // of what a load has made meanwhile
			return err
		}
		if err := h.awaitNothing(ctx); err != nil {
			return err
		}
	}
	if err := h.files.clear(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bootID, h.asked = randomID(), false
	return nil
}

func (h *hosted) deleteAll(ctx context.Context) error {
	h.mu.Lock()
	ids := slices.Sorted(maps.Keys(h.adapters))
	h.mu.Unlock()
	for _, id := range ids {
		if err := h.Backend.DeleteAdapter(ctx, id); err != nil {
			return fmt.Errorf("delete adapter %.200q: %w", id, err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.adapters)
	return nil
}

// awaitNothing waits until the backend says that it has nothing and does nothing.
func (h *hosted) awaitNothing(ctx context.Context) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	var last Status
	free := false
	err := h.Backend.Status(ctx, func(s Status) {
		last = s
		if free = s.Adapters == 0 && s.QueuedTraining == 0 && s.RunningSamples == 0 && s.WaitingSamples == 0 && s.LastProgressAge == 0; free {
			done()
		}
	})
	if free {
		return nil
	}
	return fmt.Errorf("the backend still has %d adapters, %d operations and %d samples, without progress for %v: %w",
		last.Adapters, last.QueuedTraining, last.RunningSamples+last.WaitingSamples, last.LastProgressAge, err)
}

// leased gives the context of a call of the gateway's the number of its lease.
func leased(ctx context.Context, number uint64) context.Context {
	return metadata.AppendToOutgoingContext(ctx, leaseKey, fmt.Sprint(number))
}

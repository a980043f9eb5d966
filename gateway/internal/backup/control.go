package backup

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// controlName is a socket in the data directory, by which the commands of who may read and write that talk to the running server: HTTP, one request a connection.
const controlName = "control"

// ErrNotRunning says that no server answers in a data directory.
var ErrNotRunning = errors.New("no server answers in the data directory")

// request asks for a backup.
type request struct {
	Dir string `json:"dir"` // absolute
}

// answer is one line of what comes back: progress until one of the others.
type answer struct {
	Progress *Progress `json:"progress,omitempty"`
	Result   *Result   `json:"result,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// short gives a path to a file in a folder that is short enough for a socket's address, whatever the folder's path is; it holds until close is called.
func short(dir, name string) (path string, close func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), name), func() { f.Close() }, nil
}

// Serve answers in the data directory of a source, which must be this process's alone, until ctx ends.
func Serve(ctx context.Context, src Source) error {
	path, done, err := short(src.DataDir, controlName)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	defer done()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // what a killed server left
		return fmt.Errorf("control: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("control: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil { // the directory lets nobody else in before
		return fmt.Errorf("control: %w", errors.Join(err, listener.Close()))
	}
	var one sync.Mutex
	var life sync.RWMutex // held by requests: a server that is closed does not wait for them
	mux := http.NewServeMux()
	mux.HandleFunc("POST /backup", func(w http.ResponseWriter, r *http.Request) {
		if !life.TryRLock() {
			http.Error(w, "the server is ending", http.StatusServiceUnavailable)
			return
		}
		defer life.RUnlock()
		var asked request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&asked); err != nil || !filepath.IsAbs(asked.Dir) {
			http.Error(w, "dir: an absolute path is needed", http.StatusBadRequest)
			return
		}
		// Closing the connection ends it.
		flush := http.NewResponseController(w)
		say := func(a answer) {
			_ = json.NewEncoder(w).Encode(a) // who does not read any more has ended the request
			_ = flush.Flush()
		}
		if !one.TryLock() {
			http.Error(w, "another backup is being made", http.StatusConflict)
			return
		}
		result, err := Make(r.Context(), src, asked.Dir, func(p Progress) { say(answer{Progress: &p}) })
		one.Unlock() // before the answer, after which another may be asked for
		if err != nil {
			say(answer{Error: err.Error()})
			return
		}
		say(answer{Result: &result})
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10, BaseContext: func(net.Listener) context.Context { return ctx }}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(stopped); _ = server.Close() })
	err = server.Serve(listener)
	life.Lock() // nobody unlocks it: whoever comes now comes too late
	if !stop() {
		<-stopped
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("control: %w", err)
}

// Ask has the server of a data directory make a backup in dir, a path on its machine. ErrNotRunning if there is none.
func Ask(ctx context.Context, dataDir, dir string, progress func(Progress)) (Result, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Result{}, err
	}
	path, done, err := short(dataDir, controlName)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	defer done()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	used := false
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		if used {
			return nil, errors.New("the connection has ended")
		}
		used = true
		return conn, nil
	}}}
	defer client.CloseIdleConnections()
	body, err := json.Marshal(request{Dir: dir})
	if err != nil {
		return Result{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://control/backup", bytes.NewReader(body))
	if err != nil {
		return Result{}, err
	}
	res, err := client.Do(req)
	if err != nil {
		return Result{}, fmt.Errorf("ask the server for a backup: %w", err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 64<<20)
	if res.StatusCode != http.StatusOK {
		lines.Scan()
		return Result{}, fmt.Errorf("the server refuses: %s", lines.Text())
	}
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return Result{}, fmt.Errorf("read the server's answer: %w", err)
		}
		switch {
		case a.Error != "":
			return Result{}, errors.New(a.Error)
		case a.Result != nil:
			return *a.Result, nil
		case a.Progress != nil:
			progress(*a.Progress)
		}
	}
	return Result{}, errors.Join(errors.New("the server ended before the backup was finished"), lines.Err())
}

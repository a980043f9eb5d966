package transformers

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/plugins"
)

//go:embed worker.py
var program string

// saidLines is how many of the worker's last lines a reason has.
const saidLines = 12

// worker is the Python process. One request is in it at a time; whoever waits is served in order.
type worker struct {
	cmd      *exec.Cmd
	conn     net.Conn
	turn     chan struct{}
	patience time.Duration // for one answer or sign of life; 0: for ever
	progress func()        // is called at signs of life
	lost     func(error)   // is called once, when the worker is of no more use
	ended    chan struct{} // closed when the process is gone; state is set then
	state    error

	mu   sync.Mutex
	said []string
	dead error
}

// startWorker starts the program under an interpreter. The process ends with this one, whatever happens.
func startWorker(python string, threads int, scratch string, patience time.Duration) (*worker, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket for the Python worker: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "worker"), os.NewFile(uintptr(pair[1]), "worker")
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("use a socket for the Python worker: %w", err)
	}
	script, err := scriptFile()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("write the Python worker's program: %w", err)
	}
	defer func() { _ = script.Close() }()
	w := &worker{conn: conn, turn: make(chan struct{}, 1), patience: patience, progress: func() {}, lost: func(error) {}, ended: make(chan struct{})}
	read, write, err := os.Pipe()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("make a pipe for what the Python worker says: %w", err)
	}
	w.cmd = exec.Command(python, "-I", "/dev/fd/4") //nolint:noctx // it lives as long as this process
	w.cmd.Env = environment(threads, scratch)
	w.cmd.Stdout, w.cmd.Stderr = write, write
	w.cmd.ExtraFiles = []*os.File{theirs, script}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread ends that has started the process: this one stays with it.
		runtime.LockOSThread()
		err := w.cmd.Start()
		_ = write.Close()
		started <- err
		if err == nil {
			w.state = w.cmd.Wait()
			close(w.ended)
		}
	}()
	if err := <-started; err != nil {
		_, _ = conn.Close(), read.Close()
		return nil, plugins.Invalidf("config.python", "cannot be started: %v", err)
	}
	go w.listen(read)
	return w, nil
}

// scriptFile gives the program as a file without a name, which Python opens anew.
func scriptFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("worker.py", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "worker.py")
	if _, err := f.WriteString(program); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// environment is that of the worker: nothing of this process but what finds libraries and devices, no way to the network, and what fixes the arithmetic.
func environment(threads int, scratch string) []string {
	n := strconv.Itoa(threads)
	env := []string{
		"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", "TOKENIZERS_PARALLELISM=false",
		"OMP_NUM_THREADS=" + n, "MKL_NUM_THREADS=" + n, "OPENBLAS_NUM_THREADS=" + n, "MKL_DYNAMIC=FALSE", "CUBLAS_WORKSPACE_CONFIG=:4096:8", "LC_ALL=C.UTF-8",
	}
	if scratch != "" {
		env = append(env, "HF_HOME="+scratch, "TMPDIR="+scratch, "HOME="+scratch)
	}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// listen puts what the worker prints into the log and keeps its last lines.
func (w *worker) listen(r io.ReadCloser) {
	defer func() { _ = r.Close() }()
	lines := bufio.NewReaderSize(r, 4096)
	for {
		line, _, err := lines.ReadLine() // a longer one comes in pieces
		if err != nil {
			return
		}
		text := strings.ToValidUTF8(strings.TrimRight(string(line), " \t\r"), "�")
		if text == "" {
			continue
		}
		slog.Info("the Python worker says", "line", text)
		w.mu.Lock()
		w.said = append(w.said[max(0, len(w.said)-saidLines+1):], text)
		w.mu.Unlock()
	}
}

// hold waits for the worker's turn; whoever has it may exchange frames until release.
func (w *worker) hold(ctx context.Context) (release func(), err error) {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, plugins.Cancelled(ctx.Err())
	}
	if err := w.gone(); err != nil {
		<-w.turn
		return nil, err
	}
	return func() { <-w.turn }, nil
}

func (w *worker) gone() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// answered is what every answer's head may have.
type answered struct {
	Beat  bool   `json:"beat"`
	Error string `json:"error"`
	Kind  string `json:"kind"`
	Field string `json:"field"`
}

// exchange sends a request and reads its answer. The turn is held.
func (w *worker) exchange(request, answer any, parts ...[]byte) ([]byte, error) {
	if err := w.gone(); err != nil {
		return nil, err
	}
	w.deadline()
	if err := writeFrame(w.conn, request, parts...); err != nil {
		return nil, w.fail(err)
	}
	for {
		w.deadline()
		head, body, err := readFrame(w.conn)
		if err != nil {
			return nil, w.fail(err)
		}
		var a answered
		if err := json.Unmarshal(head, &a); err != nil {
			return nil, w.fail(fmt.Errorf("its answer is no JSON: %w", err))
		}
		w.progress()
		switch {
		case a.Beat:
			continue
		case a.Error != "":
			return nil, refused(a)
		}
		if answer != nil {
			if err := json.Unmarshal(head, answer); err != nil {
				return nil, w.fail(fmt.Errorf("its answer does not fit: %w", err))
			}
		}
		return body, nil
	}
}

func refused(a answered) error {
	switch a.Kind {
	case "invalid":
		return plugins.Invalidf(a.Field, "%s", a.Error)
	case "capacity":
		return &plugins.Error{Kind: plugins.KindCapacity, Message: "the Python worker has no memory: " + a.Error}
	}
	return &plugins.Error{Kind: plugins.KindInternal, Message: "the Python worker says: " + a.Error}
}

func (w *worker) deadline() {
	var t time.Time
	if w.patience > 0 {
		t = time.Now().Add(w.patience)
	}
	_ = w.conn.SetDeadline(t)
}

// fail ends the worker for a reason, tells whom it concerns, and gives the error of everything from now on. The turn is held.
func (w *worker) fail(reason error) error {
	w.mu.Lock()
	known := w.dead
	w.mu.Unlock()
	if known != nil {
		return known
	}
	what := fmt.Sprintf("broke off: %v", reason)
	var late net.Error
	if errors.As(reason, &late) && late.Timeout() {
		what = fmt.Sprintf("has given no sign of life for %v", w.patience)
	} else {
		select { // a process that has died closes its socket first
		case <-w.ended:
			what = "died: " + exitText(w.state)
		case <-time.After(2 * time.Second):
		}
	}
	w.kill()
	_ = w.conn.Close()
	w.mu.Lock()
	message := fmt.Sprintf("the Python worker (%s, process %d) %s", w.cmd.Path, w.cmd.Process.Pid, what)
	if len(w.said) > 0 {
		message += "\nit last said:\n" + strings.Join(w.said, "\n")
	}
	w.dead = &plugins.Error{Kind: plugins.KindBackendLost, Message: message}
	dead := w.dead
	w.mu.Unlock()
	w.lost(dead)
	return dead
}

func exitText(state error) string {
	if state == nil {
		return "exit status 0"
	}
	return state.Error()
}

// kill ends the process, and whatever it has started, and waits for its end.
func (w *worker) kill() {
	_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	<-w.ended
}

// close ends a worker that nobody needs any more.
func (w *worker) close() {
	w.mu.Lock()
	if w.dead == nil {
		w.dead = &plugins.Error{Kind: plugins.KindBackendLost, Message: "the Python worker was ended"}
	}
	w.mu.Unlock()
	w.kill()
	_ = w.conn.Close()
}

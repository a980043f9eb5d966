package ordeal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

// connection is the cheapest HTTP client that will do, because it shares the processors with the server: a request is one write and, as soon as there is something to be read, one read. It has
// one request at a time, and takes answers with a length.
type connection struct {
	socket  int
	address string
	pass    []byte // in protobuf, but for its number
	request []byte // with room for the next one
	content []byte // of it
	answer  []byte // what has come of it

	seq        int // of the operation
	left       int // operations to be begun
	begun      time.Time
	retrieving bool // it was submitted
}

// connect opens a connection for the operations of one run.
func (g *gatewayOnly) connect(run string) (*connection, error) {
	tensor := func(size int, kind tinkerpb.DType) *tinkerpb.Tensor {
		return &tinkerpb.Tensor{Encoding: &tinkerpb.Tensor_Dense{Dense: make([]byte, size*payloadTokens)}, Dtype: kind, Shape: []int64{payloadTokens}}
	}
	pass, err := proto.Marshal(&tinkerpb.ForwardBackwardRequest{ModelId: run, LossFn: "cross_entropy", Data: []*tinkerpb.Datum{{
		ModelInput:   []*tinkerpb.Chunk{{Chunk: &tinkerpb.Chunk_EncodedText{EncodedText: &tinkerpb.EncodedTextChunk{Tokens: make([]byte, 4*payloadTokens)}}}},
		LossFnInputs: map[string]*tinkerpb.Tensor{"target_tokens": tensor(8, tinkerpb.DType_DTYPE_INT64), "weights": tensor(4, tinkerpb.DType_DTYPE_FLOAT32)},
	}}})
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddrPort(g.Address)
	if err != nil {
		return nil, err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &connection{socket: socket, address: g.Address, pass: pass, answer: make([]byte, 0, 16<<10)}
	err = unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if err == nil {
		err = unix.Connect(socket, &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect: %w", err), c.close())
	}
	return c, nil
}

func (c *connection) close() error { return os.NewSyscallError("close", unix.Close(c.socket)) }

// drive has every connection do its share of operations, one after the other, and gives what each took. One thread waits for all of them, as that of a load generator does: a goroutine for each
// would cost a second read, which finds nothing yet, and as many changes of threads.
func drive(connections []*connection, operations int) (latencies []time.Duration, err error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(poll))) }()
	for i, c := range connections {
		which := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, c.socket, &which); err != nil {
			return nil, os.NewSyscallError("epoll_ctl", err)
		}
		c.left = share(operations, len(connections), i)
		if err := c.submit(); err != nil {
			return nil, err
		}
	}
	events := make([]unix.EpollEvent, len(connections))
	for len(latencies) < operations {
		n, err := epollWait(poll, events)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:n] {
			took, err := connections[e.Fd].proceed()
			if err != nil {
				return nil, err
			}
			if took > 0 {
				latencies = append(latencies, took)
			}
		}
	}
	return latencies, nil
}

// submit begins the next operation, if there is one.
func (c *connection) submit() error {
	if c.left == 0 {
		return nil
	}
	c.left, c.seq, c.retrieving, c.begun = c.left-1, c.seq+1, false, time.Now()
	const seqID = 2 // the field of a ForwardBackwardRequest
	c.content = protowire.AppendVarint(protowire.AppendTag(append(c.content[:0], c.pass...), seqID, protowire.VarintType), uint64(c.seq))
	return c.post("/forward_backward", "application/x-protobuf")
}

// proceed takes what has come: a client that knows the number of its request polls for the result, and one that has that begins the next operation. It gives what an operation took that is completed.
func (c *connection) proceed() (took time.Duration, err error) {
	answer, err := c.receive()
	if answer == nil || err != nil {
		return 0, err
	}
	if c.retrieving {
		took = time.Since(c.begun)
		return took, c.submit()
	}
	_, after, ok := bytes.Cut(answer, []byte(`"request_id":"`))
	id, _, closed := bytes.Cut(after, []byte(`"`))
	if !ok || !closed {
		return 0, fmt.Errorf("/forward_backward: %.300s", answer)
	}
	c.retrieving = true
	c.content = append(append(append(c.content[:0], `{"request_id":"`...), id...), `"}`...)
	return 0, c.post("/retrieve_future", "application/json")
}

// post sends the content.
func (c *connection) post(path, contentType string) error {
	b := c.request[:0]
	for _, text := range [...]string{
		"POST /api/v1", path, " HTTP/1.1\r\nHost: ", c.address, "\r\nUser-Agent: AsyncTinker/Python 0.38.0\r\nX-API-Key: tml-local\r\nAccept: application/x-protobuf\r\nContent-Type: ", contentType, "\r\nContent-Length: ",
	} {
		b = append(b, text...)
	}
	b = append(strconv.AppendInt(b, int64(len(c.content)), 10), "\r\n\r\n"...)
	c.request, c.answer = append(b, c.content...), c.answer[:0]
	n, err := write(c.socket, c.request)
	if err == nil && n < len(c.request) {
		err = io.ErrShortWrite
	}
	return os.NewSyscallError("write", err)
}

// receive reads what has come, and gives the content of the answer once it is whole; it is valid until the next request.
func (c *connection) receive() ([]byte, error) {
	n, err := read(c.socket, c.answer[len(c.answer):cap(c.answer)])
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	c.answer = c.answer[:len(c.answer)+n]
	head, content, ok := bytes.Cut(c.answer, []byte("\r\n\r\n"))
	if !ok {
		return nil, nil
	}
	_, after, _ := bytes.Cut(head, []byte("\r\nContent-Length: "))
	digits, _, _ := bytes.Cut(after, []byte("\r\n"))
	length, err := strconv.Atoi(string(digits))
	if err != nil || !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return nil, fmt.Errorf("answer: %.300s", c.answer)
	}
	if len(content) < length {
		return nil, nil
	}
	return content[:length], nil
}

// The calls of the kernel are raw ones: others tell Go's scheduler that the thread may wait, and it wakes a second thread to look after the network meanwhile, for a fifth of the client's processor time.
// Nothing else runs in this process that could miss the thread.

func read(file int, b []byte) (int, error) { return transfer(unix.SYS_READ, file, b) }

func write(file int, b []byte) (int, error) { return transfer(unix.SYS_WRITE, file, b) }

func transfer(call uintptr, file int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(call, uintptr(file), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func epollWait(poll int, events []unix.EpollEvent) (int, error) {
	const forever = ^uintptr(0)
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), forever, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// crossing is a backend on another machine, seen from the gateway: checkpoints that it saves come to the gateway's disk, and those that it loads are brought to it. For the rest it is its Client.
type crossing struct {
	*Client
	files backendpb.RemoteClient
}

// SaveAdapter implements Backend. The path is looked at when the backend has saved, as a request with a position that is refused uses its position up all the same.
func (c *crossing) SaveAdapter(ctx context.Context, req SaveAdapterRequest) (SaveAdapterResult, error) {
	if req.Position == 0 {
		if err := req.Validate(); err != nil {
			return SaveAdapterResult{}, err
		}
		if err := absent(req.Path); err != nil {
			return SaveAdapterResult{}, err
		}
	}
	return toItsEnd(ctx, c, req.Position, func(ctx context.Context) (SaveAdapterResult, error) { return c.save(ctx, req) })
}

// absent refuses a path at which something is.
func absent(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return Invalidf("path", "%s exists", path)
	}
	return nil
}

// toItsEnd runs a call with a position to its end, or to that of the lease, also when its caller gives up before: it is not undone by that.
func toItsEnd[T any](ctx context.Context, c *crossing, position int64, call func(context.Context) (T, error)) (T, error) {
	if position == 0 {
		return call(ctx)
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
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

func (c *crossing) save(ctx context.Context, req SaveAdapterRequest) (SaveAdapterResult, error) {
	path := req.Path
	req.Path = randomID()
	res, err := c.Client.SaveAdapter(ctx, req)
	if err != nil {
		return SaveAdapterResult{}, renamed(err, req.Path, path)
	}
	if err := checkPath(path); err != nil {
		return SaveAdapterResult{}, err
	}
	if err := absent(path); err != nil {
		return SaveAdapterResult{}, err
	}
	if err := c.fetch(ctx, req.Path, path); err != nil {
		return SaveAdapterResult{}, err
	}
	return res, nil
}

// fetch brings a directory of the backend's to a path, whole or not at all.
func (c *crossing) fetch(ctx context.Context, name, path string) (err error) {
	const operation = "fetch a checkpoint"
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.files.GetFiles(streamCtx, &backendpb.GetFilesRequest{Name: name})
	if err != nil {
		return c.failure(ctx, operation, err)
	}
	first, err := stream.Recv()
	if err != nil {
		return c.failure(ctx, operation, err)
	}
	list, err := listFromPB(first.GetList())
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	temporary, err := os.MkdirTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-")
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
	}()
	receiver := transfer.NewReceiver(temporary, list, transfer.All(list))
	defer func() { _ = receiver.Close() }()
	var broken error
	err = receive(receiver, func() (*backendpb.FileChunk, error) {
		p, err := stream.Recv()
		if err != nil && !errors.Is(err, io.EOF) {
			broken = c.failure(ctx, operation, err)
			return nil, broken
		}
		return p.GetChunk(), err
	})
	if broken != nil {
		return broken
	}
	if err == nil {
		err = transfer.SyncFolder(temporary)
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err == nil {
		err = transfer.SyncFolder(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	return nil
}

// LoadAdapter implements Backend. A directory that is not there, or cannot be read, is asked for all the same: the backend has to fail the load at its place in the order.
func (c *crossing) LoadAdapter(ctx context.Context, req LoadAdapterRequest) (AdapterInfo, error) {
	return toItsEnd(ctx, c, req.Position, func(ctx context.Context) (AdapterInfo, error) { return c.load(ctx, req) })
}

func (c *crossing) load(ctx context.Context, req LoadAdapterRequest) (AdapterInfo, error) {
	path := req.Path
	name, untaken := c.bring(ctx, path)
	if untaken != nil && (req.Position == 0 || KindOf(untaken) == KindBackendLost || ctx.Err() != nil) {
		return AdapterInfo{}, untaken
	}
	req.Path = name
	info, err := c.Client.LoadAdapter(ctx, req)
	if err != nil && untaken != nil {
		return AdapterInfo{}, untaken
	}
	if err != nil {
		return AdapterInfo{}, renamed(err, name, path)
	}
	return info, nil
}

// bring has the backend have a directory, and gives the name that it has there: one for each path and content, so that the same load repeated is known as the same. The error is of the way there only; a directory that
// is not here is not there either.
func (c *crossing) bring(ctx context.Context, path string) (name string, err error) {
	const operation = "bring a checkpoint"
	h := sha256.New()
	_, _ = io.WriteString(h, path)
	var files []transfer.File
	err = checkPath(path)
	if err == nil {
		files, err = transfer.List(path)
	}
	for _, f := range files {
		fmt.Fprintf(h, "\x00%s\x00%x", f.Name, f.SHA256)
	}
	name = hex.EncodeToString(h.Sum(nil))
	if err != nil {
		return name, localError(path, err)
	}
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.files.PutFiles(streamCtx)
	if err != nil {
		return name, c.failure(ctx, operation, err)
	}
	if err := c.put(stream, name, path, files); err != nil {
		var local *localFault
		if errors.As(err, &local) {
			return name, localError(path, local.error)
		}
		return name, c.failure(ctx, operation, err)
	}
	return name, nil
}

// localFault is an error of the gateway's own files.
type localFault struct{ error }

// localError is what a backend on this machine would say of a directory.
func localError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{Kind: KindNotFound, Field: "path", Message: fmt.Sprintf("no checkpoint at %s", path)}
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return Invalidf("path", "%s: %v", path, strings.TrimPrefix(err.Error(), "openat "))
}

func (c *crossing) put(stream grpc.BidiStreamingClient[backendpb.PutFilesRequest, backendpb.PutFilesResponse], name, path string, files []transfer.File) error {
	begin := &backendpb.PutFilesRequest_Begin{Name: name, List: listToPB(files)}
	if err := sendOrEnd(stream, &backendpb.PutFilesRequest{Event: &backendpb.PutFilesRequest_Begin_{Begin: begin}}); err != nil {
		return err
	}
	p, err := stream.Recv()
	if err != nil {
		return err
	}
	wanted, err := indicesFromPB(files, p.GetWanted())
	if err != nil {
		return err
	}
	var remote error
	err = transfer.Send(path, files, wanted, func(file int, data []byte) error {
		remote = sendOrEnd(stream, &backendpb.PutFilesRequest{Event: &backendpb.PutFilesRequest_Chunk{Chunk: &backendpb.FileChunk{File: int64(file), Data: data}}})
		return remote
	})
	switch {
	case remote != nil:
		return remote
	case err != nil:
		return &localFault{err}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// sendOrEnd sends, or tells why the other side has ended the stream.
func sendOrEnd(stream grpc.BidiStreamingClient[backendpb.PutFilesRequest, backendpb.PutFilesResponse], m *backendpb.PutFilesRequest) error {
	err := stream.Send(m)
	if errors.Is(err, io.EOF) {
		_, err = stream.Recv()
	}
	return err
}

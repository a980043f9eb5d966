package plugins

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"google.golang.org/grpc"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/transfer"
)

func listToPB(files []transfer.File) *backendpb.FileList {
	list := &backendpb.FileList{Files: make([]*backendpb.File, len(files))}
	for i := range files {
		list.Files[i] = &backendpb.File{Name: files[i].Name, Size: files[i].Size, Sha256: files[i].SHA256[:]}
	}
	return list
}

// listFromPB checks what comes from outside.
func listFromPB(list *backendpb.FileList) ([]transfer.File, error) {
	if n := len(list.GetFiles()); n > transfer.MaxFiles {
		return nil, fmt.Errorf("%d files are too many: at most %d", n, transfer.MaxFiles)
	}
	files := make([]transfer.File, len(list.GetFiles()))
	for i, f := range list.GetFiles() {
		files[i].Name, files[i].Size = f.GetName(), f.GetSize()
		if n := copy(files[i].SHA256[:], f.GetSha256()); n != len(files[i].SHA256) || n != len(f.GetSha256()) {
			return nil, fmt.Errorf("%.100q: a hash of %d bytes is not allowed: %d", f.GetName(), len(f.GetSha256()), len(files[i].SHA256))
		}
	}
	return files, transfer.Check(files)
}

func indicesToPB(indices []int) []int64 {
	out := make([]int64, len(indices))
	for i, x := range indices {
		out[i] = int64(x)
	}
	return out
}

func indicesFromPB(files []transfer.File, indices []int64) ([]int, error) {
	out := make([]int, len(indices))
	for i, x := range indices {
		var err error
		if out[i], err = narrow("files", x); err != nil {
			return nil, err
		}
	}
	return out, transfer.CheckWanted(files, out)
}

// receive puts pieces that next gives together, until it says io.EOF.
func receive(r *transfer.Receiver, next func() (*backendpb.FileChunk, error)) error {
	for {
		chunk, err := next()
		if errors.Is(err, io.EOF) {
			return r.Finished()
		}
		if err != nil {
			return err
		}
		index, err := narrow("files", chunk.GetFile())
		if err != nil {
			return err
		}
		if err := r.Write(index, chunk.GetData()); err != nil {
			return err
		}
	}
}

// fileError is the error of a directory that could not be brought or fetched: one for want of room may pass.
func fileError(operation string, err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &Error{Kind: KindCapacity, Message: fmt.Sprintf("%s: %v", operation, err)}
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// PutFiles implements backendpb.RemoteServer.
func (r *remote) PutFiles(stream grpc.BidiStreamingServer[backendpb.PutFilesRequest, backendpb.PutFilesResponse]) error {
	if err := r.putFiles(stream); err != nil {
		return toStatus(fileError("receive files", err))
	}
	return nil
}

func (r *remote) putFiles(stream grpc.BidiStreamingServer[backendpb.PutFilesRequest, backendpb.PutFilesResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	begin := first.GetBegin()
	list, err := listFromPB(begin.GetList())
	if err == nil {
		err = transfer.CheckName(begin.GetName())
	}
	if err != nil {
		return Invalidf("files", "%v", err)
	}
	in, err := r.files.begin(begin.GetName(), list)
	if err != nil {
		return err
	}
	defer in.close()
	if err := stream.Send(&backendpb.PutFilesResponse{Wanted: indicesToPB(in.wanted)}); err != nil {
		return err
	}
	err = receive(in.receiver, func() (*backendpb.FileChunk, error) {
		p, err := stream.Recv()
		if err == nil && p.GetChunk() == nil {
			err = Invalidf("files", "a message without a piece of a file")
		}
		return p.GetChunk(), err
	})
	if err != nil {
		return err
	}
	if err := in.finish(); err != nil {
		return err
	}
	return stream.Send(&backendpb.PutFilesResponse{})
}

// GetFiles implements backendpb.RemoteServer.
func (r *remote) GetFiles(req *backendpb.GetFilesRequest, stream grpc.ServerStreamingServer[backendpb.GetFilesResponse]) error {
	dir, err := r.files.saving(req.GetName())
	if err != nil {
		return toStatus(err)
	}
	err = getFiles(dir, stream)
	if removed := os.RemoveAll(dir); err == nil && removed != nil {
		err = removed
	}
	if err != nil {
		return toStatus(fileError("send files", err))
	}
	return nil
}

func getFiles(dir string, stream grpc.ServerStreamingServer[backendpb.GetFilesResponse]) error {
	files, err := transfer.List(dir)
	if err != nil {
		return err
	}
	if err := stream.Send(&backendpb.GetFilesResponse{Event: &backendpb.GetFilesResponse_List{List: listToPB(files)}}); err != nil {
		return err
	}
	return transfer.Send(dir, files, transfer.All(files), func(file int, data []byte) error {
		return stream.Send(&backendpb.GetFilesResponse{Event: &backendpb.GetFilesResponse_Chunk{Chunk: &backendpb.FileChunk{File: int64(file), Data: data}}})
	})
}

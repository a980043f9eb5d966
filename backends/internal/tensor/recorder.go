package tensor

// Recorder is implemented by devices that take longer to be given an operation than to do a small one: given many that belong together, they can do with less.
type Recorder interface {
	// Record runs f, which gives the device operations. They may be put off until f is through or waits for the device, or another device for this one: nobody sees a difference, but that an error of one
	// may be that of a later one, or of Record. Calls may lie in each other.
	Record(f func() error) error
	// LimitRecorded bounds the memory that the device keeps what was recorded in, so as to start it again with less: it does without what there is no room for. Estimates may stand for what the device cannot tell.
	LimitRecorded(bytes int64)
}

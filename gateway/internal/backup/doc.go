// Package backup copies what a server keeps, while it runs, into a folder, and puts such a folder into an empty data directory. It knows files, and of a store that it can write and read a copy of itself; it knows nothing
// of what is in either.
//
// A backup is a folder:
//
//	store/        what store.Backup wrote
//	files/        the folders checkpoints, snapshots and recovery of the data directory, by hard link where the file system allows that: their files never change
//	token-secret  what signs tokens
//	backup.json   every file's size and SHA-256; written last, so that a backup without it is none
//
// Nothing that a record of the copied store names is missing in it, because deletions are held back from before the store is copied until the files are. There may be files that no record names.
package backup

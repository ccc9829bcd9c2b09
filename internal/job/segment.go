package job

import "os"

var createSegment = func(name string, nlocal int, arena int64) (*os.File, error) { return nil, nil }

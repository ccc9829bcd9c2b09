package main

import "testing"

const writeBW = `---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rxe0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      400              23.20              23.11		   0.000370
---------------------------------------------------------------------------------------
`

const sendLat = ` #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       1000          22.61          913.22       26.10      	       27.94       	6.33   		41.04   		120.77
`

func TestColumn(t *testing.T) {
	for _, c := range []struct {
		out, title string
		size       int64
		want       float64
	}{
		{writeBW, "BW average", 65536, 23.11},
		{writeBW, "MsgRate", 65536, 0.00037},
		{sendLat, "t_avg", 8, 27.94},
		{sendLat, "t_typical", 8, 26.10},
	} {
		if got, err := column(c.out, c.title, c.size); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", c.title, got, err, c.want)
		}
	}
	for _, bad := range []struct {
		out, title string
		size       int64
	}{{writeBW, "t_avg", 65536}, {writeBW, "MsgRate", 8}, {"", "MsgRate", 8}} {
		if v, err := column(bad.out, bad.title, bad.size); err == nil {
			t.Errorf("%s of %d bytes: %v", bad.title, bad.size, v)
		}
	}
}

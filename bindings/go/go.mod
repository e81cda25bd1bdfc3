module example/generate

go 1.17

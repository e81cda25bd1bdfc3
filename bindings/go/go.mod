module sharpi

go 1.18
